#!/usr/bin/env bash
# The loop of an operator over the shells of BookKeeper and Pulsar. It keeps the ledgers of topics and namespaces that it
# could not ask, which it writes to the file `failed`.
#
#   shell_loop.sh ledgers | topics | stats [FILE] | candidates | metadata FILE | delete FILE
#
# Each step reads and writes files of the current folder, so that a sample of a step can be timed. The ledgers are listed
# before the topics are asked, so that no ledger that is created meanwhile seems unreferenced. PULSAR is the folder of
# the distribution.
set -u
bookkeeper() { "$PULSAR/bin/bookkeeper" shell "$@" 2>&1; }
pulsar_admin() { "$PULSAR/bin/pulsar-admin" "$@" 2>>admin.log; }
ids_in() {
  jq '.ledgers[].ledgerId, (.schemaLedgers // [])[].ledgerId, .cursors[].cursorLedger, .compactedLedger.ledgerId'
}

case $1 in
ledgers)
  bookkeeper listledgers | sed -n 's/.*ledgerID: \([0-9]*\).*/\1/p' | sort -u >ledgers
  ;;
topics)
  for tenant in $(pulsar_admin tenants list); do
    for namespace in $(pulsar_admin namespaces list "$tenant" || echo "$tenant/" >>failed); do
      pulsar_admin topics list --topic-domain persistent --include-system-topic "$namespace" ||
        echo "$namespace/" >>failed
    done
  done >topics
  ;;
stats) # the topics of FILE
  while read -r topic; do
    if stats=$(pulsar_admin topics stats-internal "$topic"); then
      ids_in <<<"$stats" >>referenced
    else
      echo "$topic" >>failed
    fi
  done <"$2"
  ;;
candidates)
  sort -u referenced -o referenced
  comm -23 ledgers referenced >candidates
  ;;
metadata) # of the ledgers of FILE, which name the topic, so that those of topics in the file `failed` can be kept
  while read -r ledger; do
    bookkeeper ledgermetadata -ledgerid "$ledger" | tr -d '\n' | sed "s/^/$ledger /" >>metadata
    echo >>metadata
  done <"$2"
  ;;
delete) # the ledgers of FILE
  while read -r ledger; do
    bookkeeper deleteledger -ledgerid "$ledger" -force >>delete.log
  done <"$2"
  ;;
esac
