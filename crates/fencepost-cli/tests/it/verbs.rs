//! Every verb from the command line: what a person sees, the refusals, and the exit codes.

use crate::on_both;

on_both! {
    fn planning(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            add 'design the schema' --board auth --kind design --tag sql --tag urgent --done-when 'tables are drawn'
            add 'write the parser' --board auth --after auth-1 --body 'in Rust'
            add 'test the parser' --board auth --after auth-2
            add 'write the docs' --board auth --after auth-1
            add 'ship it' --board auth --after auth-3 auth-4
            add 'tell everyone' --board news --after auth-5
            board list
            board show auth
            board show news
            board show nothing
            dep add auth-4 auth-3
            dep add auth-1 auth-5
            dep add auth-4 nobody-1
            dep rm auth-4 auth-3
            dep rm auth-4 auth-3
            edit auth-2 --title 'write the new parser' -p 80 --tag rust --done-when 'it parses itself'
            edit auth-2 --tag ''
            edit auth-2 --max-attempts 0
            note auth-2 'the old one is in git'
            note auth-99 hello
            show auth-2
            list --board auth --tag sql
            list --limit 2
            list --after auth-5
            list --to kim
            why auth-1
            why auth-5
            why auth-99
            --json board list
            --json board show news
            --json why auth-5
        ");
        insta::assert_snapshot!("planning", told);
    }

    fn working(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            add one --board a
            add two --board a
            add three --board a
            add elsewhere --board b
            done
            claim a-1
            progress 'half of it'
            checkpoint 1 'schema drawn'
            checkpoint 2 'schema migrated' --data '{\"rows\": 3}'
            checkpoint 1 'late'
            checkpoint 3 x --data nonsense
            show a-1
            status
            claims --mine
            --run other claims --mine
            --run other done
            done --output 'see schema.sql' --next
            done task/a-1@1 --output 'see schema.sql'
            claim b-1
            done
            done task/a-2@1 --next
            fail task/a-3@1 --reason 'no idea' --delay 5m
            fail task/a-3@1 --reason 'the network is down' --retry --delay 5m
            why a-3
            release --note 'half of it is there'
            claim b-1 -q
            done --next
            runs
            status
            --json status
            --json claims
        ");
        insta::assert_snapshot!("working", told);
    }

    fn steering(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            add one
            add two --to kim
            add three --offer kim
            offer main-1 kim
            offer main-2 kim
            accept main-1
            accept main-1 --agent sam
            accept main-1 --agent kim
            claim main-3 --agent kim
            --run other reject main-3 --agent kim --reason 'not mine'
            reject main-3 --agent kim --reason 'not my language'
            show main-3
            assign main-3 sam
            assign main-3 kim
            claim main-3 --agent kim
            park main-3 --reason 'waits for the review'
            claim main-3 --agent sam
            --run sam-1 claim main-3 --agent sam
            why main-3
            unpark main-3
            --run sam-1 claim main-3 --agent sam
            park main-3 --reason 'too late'
            cancel main-3 --reason 'done by hand'
            done task/main-3@1
            guard task/main-3@1
            cancel main-3
            retry main-3
            retry main-1
            ready --agent sam
            --json park main-1 --reason x
        ");
        insta::assert_snapshot!("steering", told);
    }

    fn looking_after(sealed: Sealed) {
        sealed.ok(&["init"]);
        let told = sealed.story("
            claims
            runs
            add one
            add two
            --run r1 claim main-1 --agent kim
            --run r2 claim main-2
            claims
            runs
            unclaim task/main-1 --reason 'stuck since this morning'
            unclaim task/main-1
            unclaim task/main-9
            unclaim nonsense
            done task/main-1@1
            end r2 --reason 'its process died'
            end r2
            end nobody
            end
            guard task/main-2@1
            runs --all
            claim main-1
            end
            claims
            --json runs --all
        ");
        insta::assert_snapshot!("looking_after", told);
    }
}

/// Everything the shell needs to complete a line.
#[test]
fn completions_are_printed() {
    let sealed = crate::sealed::Sealed::sqlite();
    for shell in ["bash", "zsh", "fish"] {
        let script = sealed.ok(&["completions", shell]);
        assert!(script.contains("whoami") && script.contains("done-when"), "{shell}: {script}");
    }
    let said = sealed.sh("source <(fence completions bash) && complete -p fence");
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(sealed.fence(&["completions", "tcsh"]).code, 2);
}
