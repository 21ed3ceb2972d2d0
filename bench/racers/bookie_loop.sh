#!/usr/bin/env bash
# A loop with curl over the HTTP API of a bookie, which lists and deletes ledgers, and that of a broker.
#
#   bookie_loop.sh find | references | delete
#
# BOOKIE and ADMIN are the URLs. A topic whose statistics can't be read is named on stderr, and skipped.
set -u
ids_in() {
  jq '.ledgers[].ledgerId, (.schemaLedgers // [])[].ledgerId, .cursors[].cursorLedger, .compactedLedger.ledgerId'
}
path_of() { jq -Rr 'capture("^persistent://(?<ns>[^/]+/[^/]+)/(?<t>.*)$") | "persistent/" + .ns + "/" + (.t | @uri)'; }
get() { curl -sfL "$ADMIN/admin/v2/$1"; }

references() { # of the topics in the file `topics`; those that failed go to the file `failed`
  while read -r topic; do
    if stats=$(get "$(path_of <<<"$topic")/internalStats"); then
      ids_in <<<"$stats" >>referenced
    else
      echo "$topic" >>failed
      echo "skipped: $topic" >&2
    fi
  done <topics
}

case $1 in
find)
  curl -sf "$BOOKIE/api/v1/ledger/list" | jq -r 'keys[]' | sort -u >ledgers
  for tenant in $(get tenants | jq -r '.[]'); do
    for namespace in $(get "namespaces/$tenant" | jq -r '.[]'); do
      get "persistent/$namespace" | jq -r '.[]'
    done
  done >topics
  references
  sort -u referenced -o referenced
  comm -23 ledgers referenced >orphans
  ;;
references)
  references
  ;;
delete)
  while read -r ledger; do
    curl -sf -X DELETE "$BOOKIE/api/v1/ledger/delete?ledger_id=$ledger" >>delete.log || echo "$ledger: not deleted" >&2
  done <orphans
  ;;
esac
