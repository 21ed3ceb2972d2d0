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


def test_a_second_service_on_the_same_topics_is_refused_until_the_first_releases_them(deploy: Deploy) -> None:
    first = deploy()
    topic, name = first.settings.topics.requests[0], first.settings.service.name
    second = _beside(first, "second", name=f"{name}-second")
    first.request([b"no request"])
    first.run("run", "--until-idle")
    assert len(first.final()) == 1
    for command in (("check",), ("run", "--until-idle")):
        assert f"is read by service '{name}'" in " ".join(second.run(*command, code=4).split())
    assert second.receipts() == [], "the stopped service lost its topics"
    assert f"service {name}-second has no topic to release" in second.call("release", "--topic", topic, "--yes", code=2)
    assert "released: " in first.call("release", "--all", "--yes")
    assert "no other service on these topics" in second.run("check")
    second.run("run", "--until-idle")
    assert len(second.final()) == 1
    assert f"is read by service '{name}-second'" in first.run("run", "--until-idle", code=4)


def test_one_of_two_services_that_start_at_once_on_the_same_topics_is_refused(deploy: Deploy) -> None:
    first = deploy()
    second = _beside(first, "second", name=f"{first.settings.service.name}-second")
    services = (first, second)
    logs = [service.config.with_name("run.log") for service in services]
    processes = [service.start("run", "--until-idle", log=log) for service, log in zip(services, logs, strict=True)]
    codes = [process.wait(240) for process in processes]
    assert sorted(codes) == [0, 4], [log.read_text() for log in logs]
    assert "is read by service" in logs[codes.index(4)].read_text()


def test_another_state_directory_is_reported_and_raises_no_alarm(deploy: Deploy) -> None:
    service = deploy()
    service.request([b"no request"])
    service.run("run", "--until-idle")
    elsewhere = _beside(service, "elsewhere")
    output = " ".join(elsewhere.run("check", code=4).split())
    assert "this is not the state directory of service" in output
    assert f"which is {service.settings.state_dir}" in output
    assert "stop the service, keep" not in output
    assert "accounts: not checked" in output
    assert "this is not the state directory" in elsewhere.run("run", "--until-idle", code=4)
    service.run("check")

    assert "the next start may use another" in service.call("release", "--state", "--yes")
    elsewhere.run("run", "--until-idle")
    elsewhere.run("check")
    assert len(elsewhere.final()) == 1
