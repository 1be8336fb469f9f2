//! Mailboxes by hand: output, refusals and exit codes.

use crate::{
    on_both,
    sealed::{Sealed, Serving},
};

on_both! {
    fn a_message_by_hand(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            mail
            mail push session/42 '{\"tool\":\"grep\"}' --type tool_use --header from=kim --key k1
            mail push session/42 '{\"tool\":\"grep\"}' --key k1
            mail push session/42 42
            mail push session/42 '[1]' --text -p 90
            mail push session/42 later --delay 10m --max-attempts 1
            mail
            mail list session/42
            mail peek session/42 --count 2
            mail claim session/42
            mail checkpoint 1 'asked the model' --data '{\"request\": 7}'
            mail checkpoint 1 'late'
            mail done --output '{\"title\":\"found\"}' --output 'and a text' --outcome responded
            mail done message/3@1 --output '{\"title\":\"found\"}' --output 'and a text' --outcome responded
            mail done message/3@1 --output another
            mail claim session/42 session/43 --count 5
            mail done
            mail done 1 message/2@1
            mail done message/1@1 message/2@9
            mail done message/1@1 message/2@1 --output x
            mail claim session/42
            mail claim session/42 -q --wait 10ms
            mail stats session/42
            mail stats nowhere
            mail list --status nonsense
            mail list nowhere
            mail show 99
            mail show main-1
        ");
        sealed.readable();
        insta::assert_snapshot!("mail_by_hand", shown + "\n" + &sealed.transcript("mail show 3"));
    }

    /// Spaces, the order of fields and long numbers stay.
    fn a_payload_is_kept_as_it_was_written(sealed: Sealed) {
        sealed.ok(&["init"]);
        let payload = r#"{"b" : 12345678901234567890123, "a":[1,  2.50]}"#;
        sealed.ok(&["mail", "push", "box", payload]);
        assert_eq!(sealed.ok(&["mail", "work", "box", "--once", "--", "tee", "got"]).lines().count(), 1);
        let got = std::fs::read_to_string(sealed.path().join("got")).expect("what the command got");
        assert_eq!(got.trim_end(), payload);
    }

    /// Failed messages are listed, explained and redriven.
    fn dead_letters(sealed: Sealed) {
        sealed.ok(&["init"]);
        let shown = sealed.transcript("
            mail configure box --max-attempts 2 --backoff 0s
            mail push box one
            mail push box two
            mail push box three
            mail claim box -q
            mail fail --retry --reason 'the model is overloaded' --delay 5m
            mail fail message/1@1 --retry --reason 'the model is overloaded' --delay 5m
            mail list box
            mail claim box -q --count 2
            mail fail 2 --reason 'it names no session'
            mail release 3
            mail discard 3 --reason 'nobody wants it'
            mail discard 2
            mail list --status failed
            mail redrive 2
            mail redrive --mailbox box
            mail redrive 77
            mail list box
            mail claim box -q --count 3
            mail reset
            mail claim box -q --count 3
            mail reset box
            mail reset box --mine
            mail done message/2@3
            mail pause box --reason 'the model moves house'
            mail claim box
            mail
            mail resume box
            mail take box --count 2
            mail list box
            mail configure box --strict
            mail push box x --lane a
            mail configure orders --strict --replay hold --ttl 30s --retain 1h --retain-count 10
            mail push orders x -p 3
            mail push orders x --lane a
            --json mail push orders y --lane b --key k
            --json mail claim nowhere
        ");
        insta::assert_snapshot!("mail_dead_letters", shown);
        sealed.transcript("
            mail push last 'a payload'
            mail claim last -q
            mail fail --reason 'it names no session'
        ");
        sealed.readable();
        insta::assert_snapshot!("mail_dead_letter", sealed.transcript("mail show 6"));
    }

    fn a_file_of_messages_is_pushed_once(sealed: Sealed) {
        sealed.ok(&["init"]);
        let lines: String = (1..=2345).map(|n| format!("{{\"n\":{n}}}\n\n")).collect();
        std::fs::write(sealed.path().join("rows"), &lines).expect("written");
        assert_eq!(sealed.ok(&["mail", "push", "rows", "--lines", "rows", "--key", "i7"]), "pushed 2345 messages");
        std::fs::write(sealed.path().join("rows"), lines + "the last\n").expect("written");
        assert_eq!(
            sealed.ok(&["mail", "push", "rows", "-f", "rows", "--key", "i7"]),
            "pushed 1 message; 2345 existed already"
        );
        let shown = sealed.ok(&["--json", "mail", "show", "2345"]);
        assert!(shown.contains("\"payload\":{\"n\":2345}") && shown.contains("\"idempotency_key\":\"i7:4689\""), "{shown}");
        // Large ones go in several calls: a server reads two megabytes at most.
        let lines: String = (0..5).map(|_| "x".repeat(700_000) + "\n").collect();
        std::fs::write(sealed.path().join("large"), lines).expect("written");
        assert_eq!(sealed.ok(&["--json", "mail", "push", "large", "-f", "large"]), "{\"pushed\":5,\"existing\":0}");
        // A refusal names the line, and how much was pushed before it.
        std::fs::write(sealed.path().join("wrong"), format!("a\n\n{}\n", "x".repeat(1_100_000))).expect("written");
        let said = sealed.fence(&["mail", "push", "wrong", "-f", "wrong"]);
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.contains("line 3: `payload` has 1100002 bytes; at most 1048576 are allowed"), "{said:?}");
        assert!(said.err.contains("hint: pushed 1 message before it; repeat the command with the same --key to go on"), "{said:?}");
        let said = sealed.sh("head -c 10485760 /dev/zero | tr '\\0' x | fence --json mail push big @-");
        assert_eq!(said.code, 1, "{said:?}");
        assert!(said.err.starts_with("{\"error\":{\"code\":\"too_large\",\"message\":"), "{said:?}");
    }
}

/// The key of a message is not the key for the server.
#[test]
fn two_keys_are_not_mistaken_for_each_other() {
    let world = Sealed::sqlite();
    world.ok(&["init"]);
    let key = world.ok(&["key", "add", "kim", "--role", "admin", "-q"]);
    let server = Serving::start(&world, &[]);
    let there = world.over(&server.url);
    for words in [vec!["mail", "push", "box", "x", "--key", "k"], vec!["add", "x", "--key", "k"]] {
        let said = there.fence(&[&["--key", &key], &words[..]].concat());
        assert_eq!(said.code, 0, "{said:?}");
        let said = there.fence(&[&["--key", &key], &words[..]].concat());
        assert!(said.out.ends_with("(existed already)"), "{said:?}");
        let without = there.fence(&words);
        assert_eq!(without.code, 1, "the server wants a key: {without:?}");
    }
    let all =
        there.ok(&["--key", &key, "--json", "mail", "list"]) + &there.ok(&["--key", &key, "--json", "list"]);
    assert!(all.contains("\"idempotency_key\":\"k\"") && !all.contains(&key), "{all}");
}

/// Every verb has help for all its arguments.
#[test]
fn every_verb_has_help() {
    let sealed = Sealed::sqlite();
    let shown = help_of_verbs(&sealed, "mail");
    assert_eq!(shown.matches("=== fence mail ").count(), 18, "{shown}");
    insta::assert_snapshot!("mail_help", shown);
}

/// The help of each verb of a noun.
pub fn help_of_verbs(sealed: &Sealed, noun: &str) -> String {
    let help = sealed.ok(&[noun, "--help"]);
    let (_, verbs) = help.split_once("Commands:\n").expect("the verbs");
    let verbs = verbs.lines().take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let verbs = verbs.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let shown = verbs.filter(|verb| *verb != "help").map(|verb| {
        let help = sealed.ok(&[noun, verb, "--help"]);
        let (own, _) = help.split_once("Everywhere:").expect("what holds everywhere");
        format!("=== fence {noun} {verb}\n{}", own.trim_end())
    });
    shown.collect::<Vec<_>>().join("\n\n")
}
