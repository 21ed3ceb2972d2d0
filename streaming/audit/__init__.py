"""`ledger-reaper audit`: finds storage that no topic uses any more (orphans) and data that a topic has lost (missing).

Modules:
- udfs/verdicts/finding_classes.py   the rules: when a ledger is ORPHAN, MISSING, UNKNOWN, ...
- ledger_audit.py                    the order of the phases, and why that order makes the rules safe
- tables.py, workers.py              the database and the processes that every phase works with
- walk/                              phases 1 and 2: list every ledger and object, read every reference of every topic
- reference_join.py                  ledgers and objects without a reference, and references without a ledger or object
- checks/                            phases 3 and 4: read each suspect and its topic again, twice, and apply the rules
- findings.py                        the result as one table; report/ shows it on the terminal and as HTML
- certificate.py                     what could not be read, and what is UNKNOWN because of that
- publication/                       --publish: one deletion request for each orphan, each exactly once
- repeat/                            --watch, and audits beside the service
- command.py                         the command itself; explain.py is `ledger-reaper explain`
"""
