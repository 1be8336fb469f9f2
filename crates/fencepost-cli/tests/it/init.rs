//! `fence init`, and the directories and repositories in which a fleet is created.

use crate::sealed::Sealed;

#[test]
fn only_init_creates_a_fleet() {
    let sealed = Sealed::sqlite();
    sealed.write("empty.db", "");
    for db in ["empty.db", "missing.db"] {
        let said = sealed.fence(&["--db", db, "list"]);
        assert_eq!(
            (said.code, said.err.lines().next()),
            (1, Some(format!("error: there is no fleet at {db}").as_str()))
        );
    }
    assert!(!sealed.path().join("missing.db").exists());
    assert_eq!(std::fs::read(sealed.path().join("empty.db")).expect("still there"), b"");
    let postgres = Sealed::postgres();
    let said = postgres.fence(&["list"]);
    assert!(said.code == 1 && said.err.contains("there is no fleet at postgres://"), "{said:?}");
    assert!(postgres.ok(&["init"]).starts_with("the fleet is at"));
    assert!(postgres.ok(&["init"]).starts_with("the fleet was already at"));
}

#[test]
fn a_database_in_a_work_tree_stays_out_of_git() {
    let sealed = Sealed::sqlite();
    std::fs::create_dir(sealed.path().join("deep")).expect("a directory");
    std::fs::write(sealed.path().join(".git/info/exclude"), "no end of line").expect("written");
    for db in ["x.db", "deep/y.db", "deep/[a]*b?.db"] {
        sealed.ok(&["init", "--db", db]);
        sealed.ok(&["--db", db, "add", "one"]);
        sealed.ok(&["init", "--db", db]);
    }
    assert_eq!(sealed.sh("git status --porcelain").out, "");
    assert_eq!(sealed.sh("grep -c y.db .git/info/exclude").out, "1");
    // The same in a linked work tree.
    let said = sealed
        .sh("git -c user.name=x -c user.email=x@x commit -q --allow-empty -m one && git worktree add -q tree
         cd tree && fence init --db z.db > /dev/null && git status --porcelain");
    assert_eq!((said.code, said.out.as_str()), (0, ""), "{said:?}");
}

/// A cloned repository can name commands that git runs, also a bare one inside it.
#[test]
fn no_command_of_a_repository_is_run() {
    let sealed = Sealed::sqlite();
    let trap = sealed.path().join("trap").display().to_string();
    sealed.script("trap", &format!("touch {trap}.sprung"));
    let sprung = || std::fs::remove_file(format!("{trap}.sprung")).is_ok();
    let set = format!(
        "git config core.fsmonitor {trap} && git init -q --bare inner && printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=.\\nfsmonitor={trap}\\n' > inner/config"
    );
    assert_eq!(sealed.sh(&set).code, 0);
    for directory in [".", "inner"] {
        // So that this test can fail.
        sealed.sh(&format!("cd {directory} && git status"));
        assert!(sprung(), "git does not run it in {directory}: the test shows nothing");
        let said = sealed.sh(&format!(
            "cd {directory} && for words in 'init' 'init --db x.db' 'add one --db x.db' 'doctor' 'claim' 'prime' 'whoami'; do fence $words; done"
        ));
        assert!(!sprung(), "in {directory}: {said:?}");
        assert!(said.out.contains("the fleet is at x.db"), "{said:?}");
    }
    // Nor does fence write through a link.
    let said = sealed.sh("echo mine > rc && mkdir -p .claude/skills/fence && ln -s ../../../rc .claude/skills/fence/SKILL.md && fence prime --skill; cat rc");
    assert!(said.out == "mine" && said.err.contains("is a symbolic link, which is not followed"), "{said:?}");
    let said =
        sealed.sh("echo mine > rc && ln -sf ../../rc .git/info/exclude && fence init --db y.db && cat rc");
    assert!(said.code == 0 && said.out.ends_with("\nmine"), "{said:?}");
}

/// A path that is not UTF-8 is refused: a lossy conversion would name another file.
#[test]
fn paths_that_are_not_text() {
    let sealed = Sealed::sqlite();
    let said = sealed.sh("mkdir $'bad\\xff' && cd $'bad\\xff' && git init -q && fence init; ls -A ..; ls -A");
    assert!(said.err.contains("is not UTF-8"), "{said:?}");
    assert!(!said.out.contains(".fence"), "{said:?}");
    let said = sealed.sh("FENCE_DB=$'bad\\xff/x.db' fence list");
    let refused = "error: FENCE_DB is not UTF-8\nhint: the command's --help says what it takes (docs/errors.md#invalid)";
    assert_eq!((said.code, said.err.as_str()), (1, refused));
    // If the fleet is named, a removed directory does not matter.
    sealed.ok(&["init"]);
    let db = sealed.url();
    let said = sealed.sh(&format!("mkdir gone && cd gone && rmdir ../gone && fence --db '{db}' list"));
    assert_eq!((said.code, said.out.as_str()), (0, "no tasks"), "{said:?}");
}
