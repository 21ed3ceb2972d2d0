"""Two services on the same topics, and a state directory of another service, on the real cluster."""

import pytest

from tests.integration.conftest import Deploy, Deployment

pytestmark = pytest.mark.cluster


def _beside(first: Deployment, folder: str, *, name: str = "") -> Deployment:
    """Configure a service on the same topics with separate directories; `name` defaults to that of the first."""
    here = first.config.parent.with_name(folder)
    here.mkdir()
    service, config = first.settings.service.name, here / first.config.name
    text = first.config.read_text().replace(str(first.config.parent), str(here))
    config.write_text(text.replace(f'name = "{service}"', f'name = "{name or service}"', 1))
    return Deployment(config)


def test_a_service_is_refused_until_another_releases_their_topics(deploy: Deploy) -> None:
    reading = deploy()
    refused = _beside(reading, "second", name=f"{reading.settings.service.name}-second")
    reading.request([b"no request"])
    reading.console.run("run", "--until-idle")
    _takes_over_after_the_release(reading, refused, refused.console.run("run", "--until-idle", code=4))


@pytest.mark.long
def test_one_of_two_services_that_start_at_once_is_refused_until_the_other_releases_their_topics(
    deploy: Deploy,
) -> None:
    first = deploy()
    second = _beside(first, "second", name=f"{first.settings.service.name}-second")
    first.request([b"no request"])
    services = (first, second)
    logs = [service.config.with_name("run.log") for service in services]
    processes = [service.start("run", "--until-idle", log=log) for service, log in zip(services, logs, strict=True)]
    codes = [process.wait(240) for process in processes]
    assert sorted(codes) == [0, 4], [log.read_text() for log in logs]

    reading, refused = services[codes.index(0)], services[codes.index(4)]
    _takes_over_after_the_release(reading, refused, logs[codes.index(4)].read_text())


def _takes_over_after_the_release(reading: Deployment, refused: Deployment, refusal: str) -> None:
    topic, name = reading.settings.topics.requests[0], reading.settings.service.name
    other = refused.settings.service.name
    assert len(reading.final()) == 1
    for output in (refusal, refused.call("check", code=4)):
        assert f"is read by service '{name}'" in " ".join(output.split())
    assert refused.receipts() == [], "the stopped service lost its topics"
    assert f"service {other} has no topic to release" in refused.call("release", "--topic", topic, "--yes", code=2)
    assert "released: " in reading.call("release", "--all", "--yes")
    assert "no other service on these topics" in refused.call("check")
    refused.console.run("run", "--until-idle")
    assert len(refused.final()) == 1
    assert f"is read by service '{other}'" in reading.console.run("run", "--until-idle", code=4)


@pytest.mark.long
def test_another_state_directory_is_reported_and_raises_no_alarm(deploy: Deploy) -> None:
    service = deploy()
    service.request([b"no request"])
    service.console.run("run", "--until-idle")
    elsewhere = _beside(service, "elsewhere")
    output = " ".join(elsewhere.call("check", code=4).split())
    assert "this is not the state directory of service" in output
    assert f"which is {service.settings.state_dir}" in output
    assert "stop the service, keep" not in output
    assert "accounts: not checked" in output
    assert "this is not the state directory" in elsewhere.console.run("run", "--until-idle", code=4)
    service.call("check")

    assert "the next start may use another" in service.call("release", "--state", "--yes")
    elsewhere.console.run("run", "--until-idle")
    elsewhere.call("check")
    assert len(elsewhere.final()) == 1
