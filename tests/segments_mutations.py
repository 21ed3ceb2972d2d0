"""The safety lines of scalable topics for tests/mutation.py: each once, with the tests that must notice."""

WITNESS, LAYOUT, LOADER = (
    "udfs/owners/segment_witness.py",
    "udfs/formats/segment_layout.py",
    "streaming/in_use/loader.py",
)
ANSWERS, BROKER = (f"streaming/adapters/pulsar/admin_api/{name}.py" for name in ("segments", "broker"))
REFERENCES, OFFLOADS, PATHS = "udfs/owners/references.py", "streaming/sweep/tiered_storage/offloads.py", "udfs/paths.py"
MARKS = "streaming/phase_one/deletable_ledgers.py"
LEFTOVERS = "streaming/space/leftover_znodes.py"
VERDICTS = "udfs/verdicts/judge.py"
JUDGE, CHECKS = "udfs/verdicts/judge_segment.py", "streaming/audit/checks/suspect_ledgers.py"
WITNESS_TESTS = ("tests/unit/udfs/owners/test_segment_witness.py",)
HTTP_TESTS = ("tests/contract/test_pulsar_http.py",)
# the tests that must notice, by the changed file
TESTS = {
    WITNESS: WITNESS_TESTS,
    LAYOUT: ("tests/unit/udfs/formats/test_segment_layout.py",),
    LOADER: ("tests/unit/in_use/test_loader.py", "tests/unit/sweep/test_segments.py"),
    ANSWERS: HTTP_TESTS,
    BROKER: HTTP_TESTS,
    REFERENCES: ("tests/unit/sweep/test_segments.py", "tests/unit/udfs/owners/test_references.py"),
    VERDICTS: ("tests/unit/sweep/test_segments.py",),
    OFFLOADS: ("tests/unit/sweep/tiered_storage/test_offloads.py",),
    PATHS: ("tests/unit/udfs/test_paths.py",),
    MARKS: ("tests/unit/phase_one/test_deletable_ledgers.py",),
    LEFTOVERS: ("tests/unit/space/test_leftover_znodes.py",),
    JUDGE: ("tests/unit/udfs/verdicts/test_judge_segment.py",),
    CHECKS: ("tests/unit/audit/checks/test_suspect_ledgers.py",),
}
SEGMENTS = (
    (
        "a segment is judged with its layout",
        LOADER,
        "        references |= {key: with_layout(references[key], znodes[path]) for key, path in layouts.items()}\n",
        "",
    ),
    (
        "the layout's version is checked in the delete's transaction",
        WITNESS,
        "    return replace(reference, checks=(*reference.checks, (layout.path, layout.version)))",
        "    return reference",
    ),
    (
        "a layout that can't be read keeps its segments",
        WITNESS,
        "    if layout.error:\n        return layout.error\n",
        "",
    ),
    (
        "a segment that its layout names is never gone",
        WITNESS,
        "    if is_named:\n",
        "    if False:\n",
    ),
    (
        "a segment whose id is not assigned yet is never gone",
        WITNESS,
        'return "" if segment.segment_id < parsed.next_segment_id else',
        'return "" if True else',
    ),
    (
        "a name that may be a V1 topic's proves nothing",
        WITNESS,
        "    if segment.may_be_v1:\n",
        "    if False:\n",
    ),
    (
        "a layout with an unknown field is not understood",
        LAYOUT,
        "    if unknown := sorted(fields.keys() - known):",
        "    if unknown := sorted(fields.keys() & set()):",
    ),
    (
        "a layout's id belongs to one segment",
        LAYOUT,
        "        if named.legacy_topic or (named.first_hash",
        "        if False and (named.first_hash",
    ),
    (
        "a scalable topic is gone only with the known reason",
        ANSWERS,
        "        if is_known:\n",
        "        if True:\n",
    ),
    (
        "a broker that does not know scalable topics does not answer for the others",
        ANSWERS,
        '        raise UnavailableError(f"{host}: HTTP {answer.status}: {answer.reason}")\n',
        "",
    ),
    (
        "the brokers' layout is parsed as strictly as the znode",
        ANSWERS,
        "    except (FormatError, RecursionError) as error:\n        return BrokerView(presence=Presence.UNREADABLE",
        "    except (FormatError, RecursionError) as error:\n        return BrokerView(presence=Presence.GONE",
    ),
    (
        "a name that brokers would not decode is not requested",
        ANSWERS,
        " if decode_name(encoded) == encoded else None",
        "",
    ),
    (
        "a segment is looked up in its layout, and not in the list of a namespace",
        BROKER,
        "            if name not in segments:\n",
        "            if views.pop(name, None) or True:\n",
    ),
    (
        "a schema of which segments are loaded is not gone",
        BROKER,
        "view_of_schema(schema_id, of_segments) or _of_no_loaded_topic",
        "_of_no_loaded_topic",
    ),
    (
        "a cursor that its broker hides is not gone",
        REFERENCES,
        "    if broker.is_hidden:  # the broker may",
        "    if False:  # the broker may",
    ),
    (
        "a compacted ledger that its broker hides is unknown",
        REFERENCES,
        '    if owner.kind == "compacted" and is_hidden:\n',
        "    if False:\n",
    ),
    (
        "a list does not count alone while the broker hides what it knows",
        REFERENCES,
        "        is_hidden=broker is not None and broker.is_hidden,\n",
        "        is_hidden=False,\n",
    ),
    (
        "a cursor's znode does not count alone while the broker hides what it knows",
        REFERENCES,
        'is_hidden=is_hidden and owner.kind == "cursor",',
        "is_hidden=False,",
    ),
    (
        "a ledger that a broker may know and not show is kept",
        VERDICTS,
        "        or _kept_by_hidden_broker(case.reference)\n",
        "",
    ),
    (
        "an absent owner is looked up again before objects are deleted, also if a layout was read",
        OFFLOADS,
        "    return (*reference.checks, *((path, _ABSENT) for path in fixed_paths(owner_of(reference.key))))",
        "    return reference.checks or tuple((path, _ABSENT) for path in fixed_paths(owner_of(reference.key)))",
    ),
    (
        "a segment that its layout names is no orphan",
        JUDGE,
        "    if is_named or now_ms",
        "    if now_ms",
    ),
    (
        "a segment that changed a short while ago is no orphan",
        JUDGE,
        "    if is_named or now_ms - facts.last_change_ms < _wait_ms(facts.name, layout, policy):",
        "    if is_named:",
    ),
    (
        "a segment that the next split may take over waits",
        JUDGE,
        "    return policy.min_age_ms if is_assigned else",
        "    return policy.min_age_ms if True else",
    ),
    (
        "a segment is an orphan only if a broker reads the same layout",
        JUDGE,
        "    if view.presence is Presence.PRESENT:\n        return _IN_USE\n",
        "",
    ),
    (
        "a segment is an orphan only if brokers answer",
        JUDGE,
        "    if view.presence is Presence.UNREADABLE:",
        "    if False:",
    ),
    (
        "a segment that may be a V1 topic is no orphan",
        JUDGE,
        "    if layout is None and facts.name.may_be_v1:",
        "    if False:",
    ),
    (
        "a ledger of an unnamed segment gets its segment's class",
        CHECKS,
        "            if _is_of_unnamed_segment(row):\n                check = check_of_segment",
        "            if False:\n                check = check_of_segment",
    ),
    (
        "the schema of a scalable topic is no leftover",
        LEFTOVERS,
        '            topics.update(f"{namespace}/{name}" for name in names)\n',
        "",
    ),
    (
        "the segments of a namespace are no namespace",
        LEFTOVERS,
        "else (*_DOMAINS, SEGMENT_DOMAIN)",
        "else _DOMAINS",
    ),
    (
        "a segment's marks are refused",
        MARKS,
        "        _refuse_segment(topic.name)\n",
        "",
    ),
    (
        "a segment's hashes are in order",
        PATHS,
        " or match[1] > match[2] or",
        " or",
    ),
)
