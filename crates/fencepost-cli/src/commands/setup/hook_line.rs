//! The shell code in front of `hook EVENT …` in a client's settings.
//!
//! `sh -c 'CODE' FENCE hook EVENT --client CLIENT`: in the code `$0` is the program and `"$@"` the rest. It has neither single quotes nor
//! backslashes, so that every shell that a client may use takes it as one word, and so that it reads the same in JSON and TOML.

use super::own_hook::MARK;
use crate::guarded;

/// Finds the program: the installed one, else by PATH. Clients with a window may have a short PATH.
const FIND: &str = "f=$0; PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin:/usr/local/bin:/opt/homebrew/bin; \
                    command -v \"$f\" >/dev/null 2>&1 || f=fence";

/// Blocks if fence says so, with output: a wrong command line, for an older fence, exits 2 without. If fence is missing, fails or
/// hangs, it blocks lines with the words of a guarded command, and lets all others pass: a teammate without fence can work. `program` is
/// quoted for a shell.
pub fn guard(program: &str, strict: bool) -> String {
    // Of the input only the part after `tool_input`: the path of the project may contain a word. Clients ignore an exit 2 without a
    // message, and let a command pass when the hook takes too long, so that we must give up first.
    let code = format!(
        "{MARK}i=$(cat); {FIND}; t=; command -v timeout >/dev/null 2>&1 && t=\"timeout -k 2 20\"; c=127; o=; \
         if command -v \"$f\" >/dev/null 2>&1; then o=$(printf %s \"$i\" 2>/dev/null | $t \"$f\" \"$@\"); c=$?; fi; \
         if [ $c -eq 0 ] || {{ [ $c -eq 2 ] && [ -n \"$o\" ]; }}; then printf %s \"$o\"; exit $c; fi; {NET}; \
         printf %s \" $n $n $m $m \" 2>/dev/null | grep -Eqi \"{}\"; [ $? -eq 1 ] && [ -n \"$q\" ] && [ -n \"$n$m\" ] && exit 0; \
         echo \"fence: blocked. This command may act outside of this machine, and fence, which decides, is missing or failed (exit $c). \
         A person can install or repair it, or run fence setup with --remove\" >&2; exit 2",
        pattern(strict)
    );
    format!("sh -c '{code}' {program}")
}

/// Brings the input into the form that [`pattern`] is for, as `guarded/words.rs` reads a line: in `n` quotes and backslashes join what
/// stands around them, in `m` they separate. `q` has the three characters, which this code cannot write. Without awk, sed or tr
/// a variable is empty, and all is blocked; without grep, too. `p` and `e` stand around a program, `w` behind a word, and `g` is anything between two.
const NET: &str = "p=[^a-z0-9_.]; e=\"(.exe|.cmd|.bat)?[^a-z0-9_]\"; w=[^a-z0-9_.-]; g=\"(.*[^a-z0-9_./-])?\"; \
                   q=$(awk -v f=%c%c%c \"BEGIN{printf f,92,34,39}\" 2>/dev/null); b=${q%??}; \
                   s=$(printf %s \"${i#*tool_input}\" 2>/dev/null | tr -s \"[:space:]\" \" \" | \
                   sed -e \"s/$b$b$b$b$b${b}n//g\" -e \"s/$b$b[nrt]/ /g\" -e \"s/[$][{]*[A-Za-z_][A-Za-z0-9_]*:*[-=+?]*/ /g\" \
                   -e \"s/[$][{]*[0-9]:*[-=+?]*/ /g\" -e \"s/[$]/ /g\" -e \"s/:[-=+?]/ /g\"); \
                   n=$(printf %s \"$s\" | sed -e \"s/[$q]//g\"); m=$(printf %s \"$s\" | sed -e \"s/[$q]/ /g\")";

/// The built-in guarded list as an extended regular expression, with the variables of [`NET`].
fn pattern(strict: bool) -> String {
    let commit = strict.then_some("git commit");
    let rules = guarded::DEFAULT.iter().copied().chain(commit).map(|text| {
        let (program, words) = text.split_once(' ').unwrap_or((text, ""));
        let words = words.split_whitespace().map(|word| format!("$g({word})$w"));
        format!("$p({program})$e{}", words.collect::<String>())
    });
    rules.collect::<Vec<_>>().join("|")
}

/// Calls fence, and passes on its output and a refusal. It never fails otherwise.
pub fn quiet(program: &str) -> String {
    let code = format!(
        "{MARK}{FIND}; command -v \"$f\" >/dev/null 2>&1 || exit 0; o=$(\"$f\" \"$@\"); c=$?; printf %s \"$o\"; \
         [ $c -eq 2 ] && [ -n \"$o\" ] && exit 2; exit 0"
    );
    format!("sh -c '{code}' {program}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        io::Write,
        os::unix::{fs::PermissionsExt, process::ExitStatusExt},
        path::Path,
        process::{Command, Stdio},
    };

    /// Exit code, standard output and standard error of a hook; two shells agree on it.
    fn run(line: &str, path: &str, input: &str) -> (i32, String, String) {
        let (sh, bash) = (run_in("sh", line, path, input), run_in("bash", line, path, input));
        assert_eq!((sh.0, &sh.1), (bash.0, &bash.1), "{line}: {bash:?}");
        sh
    }

    fn run_in(shell: &str, line: &str, path: &str, input: &str) -> (i32, String, String) {
        // Fence may be installed on the machine of the test, and that machine may be slow.
        let line = line
            .replace(":/usr/local/bin:/opt/homebrew/bin", "")
            .replace("timeout -k 2 20", "timeout -k 2 600")
            .replacen("sh -c", &format!("{shell} -c"), 1);
        let mut command = Command::new(format!("/bin/{shell}"));
        command.args(["-c", &format!("{line} hook pre-tool-use --client claude")]);
        command.env_clear().env("PATH", path).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a shell");
        // A hook may end before it has read its input.
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("its end");
        assert_eq!(output.status.signal(), None);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
    }

    /// A stand-in for fence. Written by another process: see `Sealed::script`.
    fn stand_in(file: &Path, text: &str) {
        let written = Command::new("/bin/sh")
            .args(["-c", "printf '%s\n' \"$1\" > \"$0\" && chmod 755 \"$0\""])
            .arg(file)
            .arg(format!("#!/bin/sh\n{text}"))
            .status();
        assert!(written.expect("sh").success());
    }

    fn input(command: &str) -> String {
        let cwd = "/home/kim/release-push";
        serde_json::json!({"cwd": cwd, "tool_name": "Bash", "tool_input": {"command": command}}).to_string()
    }

    #[test]
    fn the_answer_of_fence_is_passed_on() {
        let dir = tempfile::tempdir().expect("a directory");
        let fence = dir.path().join("my fence/fence");
        fs::create_dir(dir.path().join("my fence")).expect("made");
        let quoted = crate::output::text::shell_quoted(&fence);
        let ends = [
            ("cat; echo \" $*\"; exit 0", 0, Some("{\"hook\"} hook pre-tool-use --client claude")),
            ("cat >/dev/null; echo '{\"a\": \"x y\"}'; exit 0", 0, Some("{\"a\": \"x y\"}")),
            ("echo '{}'; echo no >&2; exit 2", 2, Some("{}")),
            // A wrong command line.
            ("exit 2", 0, None),
        ];
        for (text, code, out) in ends {
            stand_in(&fence, text);
            for line in [guard(&quoted, false), quiet(&quoted)] {
                let said = run(&line, "/usr/bin:/bin", "{\"hook\"}");
                assert_eq!((said.0, said.1.trim_end()), (code, out.unwrap_or_default()), "{line}: {said:?}");
                assert_eq!(said.2, if code == 2 { "no\n" } else { "" }, "{line}");
            }
        }
        // By PATH, if it is not where it was installed.
        stand_in(&fence, "echo here");
        let path = format!("{}:/usr/bin:/bin", fence.parent().expect("a directory").display());
        for line in [guard("/nowhere/fence", false), quiet("fence")] {
            assert_eq!(run(&line, &path, "{}").1.trim_end(), "here", "{line}");
        }
    }

    #[test]
    fn without_fence_only_guarded_commands_are_blocked() {
        let dir = tempfile::tempdir().expect("a directory");
        let fence = dir.path().join("fence");
        let quoted = fence.display().to_string();
        // Missing, a crash, killed, and partial output before a crash.
        let broken = [
            "",
            "exit 1",
            "exit 2",
            "exit 101",
            "echo {}; exit 255",
            "kill -9 $$",
            "echo '{\"decision\":\"allow\"}'; exit 3",
        ];
        for text in broken {
            match text {
                "" => {}
                text => stand_in(&fence, text),
            }
            let loose = guard(&quoted, false);
            for command in
                ["git push", "cd x && git -C y push", "npm publish", "kubectl delete pod x", "pulumi up -y"]
            {
                let (code, out, err) = run(&loose, "/usr/bin:/bin", &input(command));
                assert_eq!((code, out.as_str()), (2, ""), "{text}: {command}");
                assert!(err.contains("fence: blocked") && err.contains("--remove"), "{text}: {err}");
            }
            for command in [
                "ls",
                "cargo test",
                "git commit -m x",
                "make release",
                "git checkout setup",
                "echo 'a \\ \" b'",
            ] {
                let (code, out, _) = run(&loose, "/usr/bin:/bin", &input(command));
                assert_eq!((code, out.as_str()), (0, ""), "{text}: {command}");
            }
            assert_eq!(run(&guard(&quoted, true), "/usr/bin:/bin", &input("git commit")).0, 2);
            assert_eq!(run(&quiet(&quoted), "/usr/bin:/bin", &input("git push")).0, 0, "{text}");
        }
        // One that hangs, with the patience of a test.
        stand_in(&fence, "trap '' TERM; echo '{}'; while :; do sleep 1; done");
        let impatient = |line: String| line.replace("timeout -k 2 20", "timeout -k 0.1 0.1");
        assert_ne!(impatient(guard(&quoted, false)), guard(&quoted, false));
        let (code, out, err) = run(&impatient(guard(&quoted, false)), "/usr/bin:/bin", &input("git push"));
        assert!((code, out.as_str()) == (2, "") && err.contains("fence: blocked"), "{code} {out} {err}");
        fs::set_permissions(&fence, fs::Permissions::from_mode(0o644)).expect("set");
        assert_eq!(run(&guard(&quoted, false), "/usr/bin:/bin", &input("git push")).0, 2);
        // Without fence it is quiet.
        assert_eq!(run(&quiet("/nowhere/fence"), "/usr/bin:/bin", "{}"), (0, String::new(), String::new()));
        assert_eq!(
            run(&guard("/nowhere/fence", false), "/usr/bin:/bin", "{}"),
            (0, String::new(), String::new())
        );
    }

    /// The net here is the one of `guarded`, without its proofs.
    #[test]
    fn without_fence_all_lines_with_the_words_are_blocked() {
        use crate::guarded::tests::tables;
        let line = guard("/nowhere/fence", false);
        let exit = |command: &str| run_in("sh", &line, "/usr/bin:/bin", &input(command)).0;
        // A person's command is not in the built-in list.
        let caught = tables::CAUGHT.iter().filter(|line| !line.contains("lift"));
        let missed: Vec<_> = caught.filter(|line| exit(line) != 2).collect();
        assert!(missed.is_empty(), "{missed:#?}");
        let blocked: Vec<_> = tables::OUT_OF_REACH.iter().filter(|line| exit(line) != 0).collect();
        assert!(blocked.is_empty(), "{blocked:#?}");
        // Without one of the programs that the net needs.
        for missing in ["awk", "sed", "tr", "grep"] {
            let dir = tempfile::tempdir().expect("a directory");
            for program in
                ["awk", "sed", "tr", "grep", "cat", "sh"].iter().filter(|program| **program != missing)
            {
                let found = ["/usr/bin", "/bin"]
                    .map(|at| Path::new(at).join(program))
                    .into_iter()
                    .find(|file| file.exists());
                std::os::unix::fs::symlink(found.expect(program), dir.path().join(program)).expect("linked");
            }
            assert_eq!(
                run_in("sh", &line, dir.path().to_str().expect("a path"), &input("ls")).0,
                2,
                "{missing}"
            );
        }
    }

    #[test]
    fn the_code_is_one_word_in_every_shell() {
        for line in [guard("fence", true), quiet("fence")] {
            assert_eq!(line.matches('\'').count(), 2, "{line}");
            assert!(!line.contains(['\\', '\n']), "{line}");
        }
    }
}
