//! Texts from files and standard input, and output that nobody reads.

use crate::on_both;

on_both! {
    /// Payloads, bodies and outputs come from files and standard input. Notes, reasons and titles are the text itself:
    /// they may begin with a mention.
    fn only_bodies_payloads_and_outputs_are_read_from_files(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.write("why.txt", "a text\nof two lines");
        let shown = sealed.transcript("
            add @kim --done-when @why.txt --body @why.txt
            edit main-1 --title - --done-when @kim
            note main-1 '@alice has a look'
            note main-1 -
            claim -q
            progress '@@kim has a look'
            progress '@kim has a look'
            fail --retry --delay 0s --reason @why.txt
            claim -q
            release --note @kim
            park main-1 --reason @why.txt
            unpark main-1
            claim -q
            unclaim main-1 --reason @why.txt
            show main-1
            cancel main-1 --reason @why.txt
            mail push box @why.txt
            mail push box @@kim
            mail pause box --reason @why.txt
            mail discard 1 --reason @kim
            add two
            claim -q
            done --output @why.txt
            done --output @missing.txt
        ");
        insta::assert_snapshot!("texts", shown);
        // Standard input has the same two names wherever it is read.
        sealed.ok(&["agent", "join", "bob"]);
        let said = sealed.sh(r#"
            set -e
            for name in - @-; do
                echo from afar | fence add three --board piped --body $name >/dev/null
                echo from afar | fence mail push piped $name >/dev/null
                echo from afar | fence mail push piped --lines $name >/dev/null
                echo '{"title": "from afar"}' | fence add -f $name --board piped >/dev/null
                echo from afar | fence inbox send bob $name >/dev/null
                echo from afar | fence mail done $(fence mail claim piped -q) --output $name >/dev/null
            done
            for n in 1 2 3 4; do fence show piped-$n; done
            fence mail peek piped --count 9; fence mail show 3; fence mail show 4; fence inbox list bob
        "#);
        assert_eq!(said.code, 0, "{said:?}");
        // Four tasks, two remaining payloads, two outputs, two messages.
        assert_eq!(said.out.matches("from afar").count(), 10, "{said:?}");
    }

    fn control_characters_do_not_act(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "evil\u{1b}[2Jtitle", "--body", "a\u{1b}[2Jbody\nof two lines"]);
        sealed.ok(&["note", "main-1", "and\u{7}a note"]);
        for words in [vec!["list"], vec!["show", "main-1"], vec!["board", "show", "main"], vec!["claim"], vec!["events"]] {
            let said = sealed.ok(&words);
            assert!(!said.contains(['\u{1b}', '\u{7}']), "{words:?}: {said:?}");
        }
        assert!(sealed.ok(&["show", "main-1"]).contains("    a\\u{1b}[2Jbody\n    of two lines"));
    }

    fn a_full_disk_and_a_closed_pipe(sealed: Sealed) {
        sealed.ok(&["init"]);
        sealed.ok(&["add", "one"]);
        let full = sealed.sh("fence claim -q >/dev/full");
        assert_eq!(full.code, 1, "{full:?}");
        assert!(full.err.contains("the reply cannot be written to standard output"), "{full:?}");
        let enough = sealed.sh("fence completions bash | head -1; fence list | true; echo ${PIPESTATUS[0]}");
        assert_eq!((enough.err.as_str(), enough.out.lines().last()), ("", Some("0")), "{enough:?}");
    }
}
