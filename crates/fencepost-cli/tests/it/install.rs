//! `make install` and `make uninstall`, as the README has them, in a home of their own; `make size` and `make audit`.

use crate::{
    docs::scenario,
    sealed::{Finished, Sealed},
};
use std::path::Path;

/// A line for `make`, with the binary that is tested: a test does not build a release.
fn make(sealed: &Sealed, line: &str) -> Finished {
    let (command, _) = line.split_once('#').unwrap_or((line, ""));
    assert!(command.starts_with("make "), "{line}");
    let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let binary = env!("CARGO_BIN_EXE_fence");
    sealed.sh(&format!("cd '{checkout}' && {command} BINARY='{binary}'"))
}

/// Every file below a directory, by its path in it.
fn files(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => left.push(path),
                false => found.push(path.strip_prefix(root).expect("below it").display().to_string()),
            }
        }
    }
    found.sort();
    found
}

#[test]
fn what_the_readme_installs_works_and_goes_away_again() {
    let sealed = Sealed::sqlite();
    let script = scenario("install").concat();
    let [install, uninstall] = script.lines().collect::<Vec<_>>()[..] else { panic!("{script}") };
    let said = make(&sealed, install);
    assert_eq!(said.code, 0, "{said:?}");

    let root = sealed.path().join(".local");
    let (pages, others): (Vec<_>, Vec<_>) =
        files(&root).into_iter().partition(|file| file.starts_with("share/man/"));
    assert_eq!(
        others,
        [
            "bin/fence",
            "share/bash-completion/completions/fence",
            "share/fish/vendor_completions.d/fence.fish",
            "share/zsh/site-functions/_fence",
        ]
    );
    let version = sealed.sh("$HOME/.local/bin/fence --version");
    assert!(version.code == 0 && version.out.starts_with("fence "), "{version:?}");
    let completed =
        sealed.sh("source $HOME/.local/share/bash-completion/completions/fence && complete -p fence");
    assert_eq!(completed.code, 0, "{completed:?}");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect(file);
    assert!(read("share/zsh/site-functions/_fence").starts_with("#compdef fence"));
    assert!(read("share/fish/vendor_completions.d/fence.fish").contains("complete -c fence"));

    // A page for each command that `--help` lists, in groups before its options.
    let help = sealed.ok(&["--help"]);
    let (groups, _) = help.split_once("\nOptions:").expect("options");
    let commands = groups.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next());
    let commands: Vec<_> = commands.map(|name| format!("share/man/man1/fence-{name}.1")).collect();
    assert!(commands.len() > 40, "{help}");
    let missing: Vec<_> = commands.iter().filter(|page| !pages.contains(page)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for page in ["fence.1", "fence-claim.1", "fence-mail-push.1"] {
        assert!(read(&format!("share/man/man1/{page}")).contains(".TH "), "{page}");
    }
    assert!(read("share/man/man1/fence-claim.1").contains("\\-\\-ttl"));
    assert!(!pages.iter().any(|page| page.ends_with("fence-watchdog.1")), "nobody types that: {pages:?}");

    let said = make(&sealed, uninstall);
    assert_eq!(said.code, 0, "{said:?}");
    assert_eq!(files(&root), [""; 0]);
}

#[test]
fn a_package_is_staged_below_destdir() {
    let sealed = Sealed::sqlite();
    let said = make(&sealed, "make install DESTDIR=$HOME/stage PREFIX=/usr");
    assert_eq!(said.code, 0, "{said:?}");
    assert!(files(&sealed.path().join("stage/usr")).contains(&"bin/fence".to_owned()));
    let said = make(&sealed, "make uninstall DESTDIR=$HOME/stage PREFIX=/usr");
    assert_eq!((said.code, files(&sealed.path().join("stage"))), (0, vec![]));
}

#[test]
fn everybody_can_read_what_root_installs_with_a_strict_umask() {
    let sealed = Sealed::sqlite();
    let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let binary = env!("CARGO_BIN_EXE_fence");
    let install = format!("cd '{checkout}' && umask 077 && make install PREFIX=$HOME/usr BINARY='{binary}'");
    // The second time over files that an older version installed.
    for _ in 0..2 {
        let said = sealed.sh(&install);
        assert_eq!(said.code, 0, "{said:?}");
        let modes = sealed.sh("cd $HOME/usr && find . -printf '%y %m %p\\n'").out;
        assert!(modes.lines().count() > 50, "{modes}");
        for line in modes.lines() {
            let is_program = line.starts_with("d ") || line.ends_with("/bin/fence");
            assert!(line[2..].starts_with(if is_program { "755 " } else { "644 " }), "{line}");
        }
        assert_eq!(sealed.sh("cd $HOME/usr && find . -type f -exec chmod 600 {} +").code, 0);
    }
}

/// `make audit` with a stand-in for cargo-deny: the real one needs the network for minutes.
#[test]
fn an_audit_without_the_advisories_is_no_success() {
    let sealed = Sealed::sqlite();
    let version = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/audit"));
    let version = version.lines().find_map(|line| line.strip_prefix("VERSION=")).expect("a version");
    let bin = format!("target/audit/cargo-deny-{version}/bin");
    assert_eq!(sealed.sh(&format!("mkdir -p {bin}")).code, 0);
    let audit = |deny: &str| {
        sealed.script(&format!("{bin}/cargo-deny"), &format!("echo \"$*\" >> $HOME/asked\n{deny}"));
        let checkout = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let said = sealed.sh(&format!("cd '{checkout}' && CARGO_TARGET_DIR=$HOME/target scripts/audit"));
        let asked = std::fs::read_to_string(sealed.path().join("asked")).expect("asked");
        std::fs::remove_file(sealed.path().join("asked")).expect("removed");
        (said, asked.contains("check --hide-inclusion-graph --disable-fetch advisories"))
    };
    let (said, was_checked) = audit("exit 0");
    assert!(said.code == 0 && was_checked && !said.err.contains("NOT CHECKED"), "{said:?}");
    let (said, was_checked) = audit("case \"$*\" in *fetch*db) echo no network >&2; exit 1;; esac");
    assert!(said.code == 75 && !was_checked, "{said:?}");
    assert!(
        said.err.contains("NOT CHECKED: known vulnerabilities") && said.err.contains("no network"),
        "{said:?}"
    );
    let (said, _) = audit("case \"$*\" in *advisories) exit 1;; esac");
    assert_eq!(said.code, 1, "a known vulnerability: {said:?}");
    let (said, was_checked) = audit("case \"$*\" in *licenses*) exit 4;; esac");
    assert!(said.code == 4 && !was_checked, "{said:?}");
    // Nothing that everybody runs calls it.
    let makefile = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Makefile"));
    assert_eq!(makefile.matches("scripts/audit").count(), 1, "only `make audit`");
    let check =
        makefile.split("\ncheck:").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a target");
    assert!(!check.contains("audit"), "{check}");
}

/// What each linker writes for two functions: 0x100000 and 0x80000 bytes.
const LLVM: &str = "
             VMA              LMA     Size Align Out     In      Symbol
          100000           100000   180000    16 .text
          100000           100000   100000    16         a.o:(.text._ZN9fencepost4task5claim3run17h0123456789abcdefE)
          200000           200000    80000    16         b.o:(.text.sqlite3Select)
";
const GNU: &str = "
Discarded input sections

 .text.sqlite3Unused
                0x0000000000000000   0x900000 b.o

Memory Configuration

Linker script and memory map

 .text._ZN9fencepost4task5claim3run17h0123456789abcdefE
                0x0000000000100000   0x100000 a.o
 .text.sqlite3Select 0x0000000000200000    0x80000 b.o
";

#[test]
fn the_size_is_told_with_the_largest_groups_of_functions() {
    let sealed = Sealed::sqlite();
    let release = sealed.path().join("target/release");
    std::fs::create_dir_all(&release).unwrap();
    let size = || make(&sealed, "make --no-print-directory size CARGO_TARGET_DIR=$HOME/target");
    let said = size();
    assert!(said.code != 0 && said.err.contains("run make"), "{said:?}");

    let write = |file: &str, text: &str| std::fs::write(release.join(file), text).unwrap();
    assert_eq!(sealed.sh("cd $HOME/target/release && truncate -s 12345678 fence && chmod +x fence").code, 0);
    write("cold-build", "3 min 42 s on 2 cores\n");
    for map in [LLVM, GNU] {
        write("fence.map", map);
        let said = size();
        assert_eq!(said.code, 0, "{said:?}");
        let expected = "\
cold build  3 min 42 s on 2 cores
binary      12.3 MB
code        the ten largest groups of functions:
    1.05 MB       1  fencepost::task
    0.52 MB       1  C and assembly (SQLite, ring, mimalloc)";
        assert_eq!(said.out, expected, "{map}");
    }
}
