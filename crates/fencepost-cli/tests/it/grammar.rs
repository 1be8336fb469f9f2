//! One grammar: the same word means the same thing everywhere, and the words that people type are understood.

use crate::sealed::Sealed;

/// A word that means one command here is that command; one that could mean several is answered with all of them.
#[test]
fn words_that_people_type() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let told = sealed.story(
        "
        new one --board a
        create two --board a -p 60
        ls --board a
        start a-1 -q
        heartbeat --help
        comment a-1 'a note'
        update a-1 --title changed
        complete
        take -q
        finish
        view a-1
        ps
        undo
        next
        rm a-1
        send bob hello
        complet
        mail next
        --json next
    ",
    );
    let (before, help) = told.split_once("$ fence heartbeat").expect("the help of an alias");
    let after = help.split_once("$ fence comment").expect("what comes after it").1;
    assert!(help.contains("fence renew"), "{help}");
    insta::assert_snapshot!("words", format!("{before}$ fence comment{after}"));
}

#[test]
fn old_words_and_new_ones_do_the_same() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    for words in [&["add", "one"][..], &["add", "two", "--after", "main-1"], &["agent", "join", "bob"]] {
        sealed.ok(words);
    }
    // A noun alone lists.
    for noun in ["board", "agent", "channel", "route", "key"] {
        let alone = sealed.ok(&[noun]);
        assert_eq!(alone, sealed.ok(&[noun, "list"]), "{noun}");
        assert_eq!(alone, sealed.ok(&[noun, "ls"]), "{noun}");
    }
    // One word for removing.
    for word in ["rm", "remove", "delete"] {
        sealed.ok(&["dep", "add", "main-2", "main-1"]);
        assert_eq!(sealed.ok(&["dep", word, "main-2", "main-1"]), "main-2  unassigned  50  two", "{word}");
        let route = sealed.ok(&["route", "add", "slack", "--to", "bob", "--text", word]);
        let id = route.split_whitespace().next().expect("its number");
        assert_eq!(sealed.ok(&["route", word, id]), format!("route {id} is removed"), "{word}");
    }
    // A page begins after an item; --after is what a task waits for.
    for payload in ["a", "b", "c"] {
        sealed.ok(&["mail", "push", "box", payload]);
        sealed.ok(&["inbox", "send", "bob", payload]);
    }
    sealed.ok(&["mail", "push", "crate", "x"]);
    for words in [
        &["list", "main-1"][..],
        &["mail", "list", "1"],
        &["mail", "stats", "box"],
        &["inbox", "list", "2", "bob"],
        &["route", "unmatched", "1"],
    ] {
        let (verb, rest) = if words.len() == 2 { words.split_at(1) } else { words.split_at(2) };
        let page = |flag: &str| sealed.ok(&[verb, &[flag, rest[0]], &rest[1..]].concat());
        assert_eq!(page("--start-after"), page("--after"), "{words:?}");
    }
    assert_eq!(sealed.ok(&["list", "--start-after", "main-1"]), "main-2  unassigned  50  two");
    assert!(sealed.ok(&["list", "--limit", "1"]).ends_with("... and more: --start-after main-1"));
    // --count is how many, as for `mail claim`; --max is how long.
    for flag in ["--count", "--max"] {
        sealed.ok(&["mail", "work", "box", flag, "1", "--", "cat"]);
    }
    assert_eq!(sealed.ok(&["mail", "list", "box", "--status", "processed"]).lines().count(), 2);
}

#[test]
fn numbers_that_are_none() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let told = sealed.story(
        "
        add x -p high
        edit main-1 -p low
        mail push box x -p urgent
        list --limit ten
        mail claim box --count 99999999999999999999
        mail work box --batch few -- cat
        --json add x -p high
    ",
    );
    insta::assert_snapshot!("numbers", told);
}
