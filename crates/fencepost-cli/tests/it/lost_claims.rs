//! Commands whose claim is over.

use crate::{on_both, sealed::Sealed};

on_both! {
    /// A run that has lost its claim must stop: exit 5, as with the token.
    fn without_a_token_a_lost_claim_is_over(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            done
            add one
            claim main-1 -q
            unclaim task/main-1
            done
            guard
            progress 'half of it'
        ");
        insta::assert_snapshot!("lost", shown);
    }

    /// A variable outlives its claim, and a repeated completion returns the first reply.
    fn a_stale_variable_completes_nothing(sealed: Sealed) {
        sealed.ok(&["init"]);
        for title in ["one", "two", "three"] {
            sealed.ok(&["add", title]);
        }
        let token = sealed.ok(&["claim", "-q"]);
        let said = sealed.sh(&format!(
            "export FENCE_RUN=me FENCE_CLAIM={token}; fence done --next >/dev/null; fence done --next 2>&1; echo exit $?"
        ));
        assert_eq!(
            said.out,
            "error: FENCE_CLAIM is `task/main-1@1`, and that claim is over\nhint: name one of your claims: task/main-2@1\nexit 5"
        );
        assert_eq!(sealed.ok(&["claims", "--mine"]).lines().count(), 2, "a head and one claim");
        // While the run holds nothing else, repeating it is safe.
        sealed.ok(&["done"]);
        assert_eq!(sealed.sh(&format!("FENCE_RUN=me FENCE_CLAIM={token} fence done")).code, 0);
    }

}

/// Nobody has claimed since, and there is no server: every command shows the state that the next claim will find.
#[test]
fn a_lapsed_lease_is_shown_before_the_next_claim() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    sealed.ok(&["add", "one", "--board", "a", "--to", "kim"]);
    sealed.ok(&["add", "two", "--board", "a"]);
    sealed.ok(&["edit", "a-2", "--max-attempts", "1"]);
    sealed.ok(&["add", "three", "--board", "a", "--after", "a-2"]);
    sealed.ok(&["mail", "push", "post", "hello"]);
    sealed.ok(&["--agent", "kim", "claim", "a-1"]);
    sealed.ok(&["--agent", "kim", "claim", "a-2"]);
    sealed.ok(&["--agent", "kim", "mail", "claim", "post"]);
    // Set directly, so that a slow machine does not matter.
    sealed.sql("update run set expires_at = opened_at");
    let shown = sealed.transcript(
        "
        list
        list --status in_progress
        list --status failed
        show a-1
        why a-1
        why a-2
        why a-3
        --agent kim ready
        board show a
        guard task/a-1@1
        guard task/a-2@1
        claims
        runs
        mail list
        mail list --status processing
        mail peek post
        wait --board a
    ",
    );
    insta::assert_snapshot!("lapsed", shown);
    assert!(!sealed.ok(&["events"]).contains("lapsed"), "nothing was written");
    let log = sealed.ok(&["log", "a-1"]);
    assert!(log.contains("attempt @1 by run me (agent kim): lapsed: its lease is over"), "{log}");
}
