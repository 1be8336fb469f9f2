//! Programs that run another command, and where on their command line it stands.

/// Read a script from `-c TEXT` or from standard input.
pub(super) const SHELLS: &[&str] =
    &["sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "rbash", "yash", "fish"];

/// Read commands from standard input if no command is given to them.
pub(super) const COMMAND_READERS: &[&str] = &["at", "batch", "parallel", "ssh", "su"];

/// Run each of their arguments as shell text.
pub(super) const EACH_ARGUMENT: &[&str] = &["concurrently", "hyperfine", "parallel", "screen", "tmux", "wsl"];

/// Start a command after `--`, whatever stands before it.
pub(super) const AFTER_DASHES: &[&str] = &[
    "aws-vault",
    "chamber",
    "devbox",
    "doppler",
    "dotenv",
    "dotenvx",
    "entr",
    "fence",
    "firejail",
    "infisical",
    "kubectl",
    "mise",
    "npm",
    "npx",
    "op",
    "parallel",
    "pnpm",
    "sops",
    "xvfb-run",
    "yarn",
];

/// Options that are followed by shell text.
pub(super) const TEXT_OPTIONS: &[(&str, &[&str])] = &[
    ("cmd", &["/c", "/C", "/k"]),
    ("entr", &["-s"]),
    ("env", &["-S", "--split-string"]),
    ("flock", &["-c", "--command"]),
    ("nix-shell", &["--run", "--command"]),
    ("npm", &["-c", "--call"]),
    ("npx", &["-c", "--call"]),
    ("powershell", &["-c", "-Command", "-command"]),
    ("pwsh", &["-c", "-Command", "-command"]),
    ("runuser", &["-c", "--command"]),
    ("script", &["-c", "--command"]),
    ("su", &["-c", "--command"]),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runs {
    /// The remaining words are the command.
    Words,
    /// The remaining words, joined with spaces, are shell text.
    Text,
}

#[derive(Debug)]
pub(super) struct Wrapper {
    pub program: &'static str,
    /// The subcommands that run a command; empty if the program itself does.
    pub subcommands: &'static [&'static str],
    /// The options that take a separate value. `None`: not listed here, so both readings of each option are tried.
    pub values: Option<&'static [&'static str]>,
    /// Words between the options and the command.
    pub operands: usize,
    pub runs: Runs,
}

const fn plain(program: &'static str) -> Wrapper {
    exact(program, &[], 0)
}

const fn exact(program: &'static str, values: &'static [&'static str], operands: usize) -> Wrapper {
    Wrapper { program, subcommands: &[], values: Some(values), operands, runs: Runs::Words }
}

const fn loose(program: &'static str, subcommands: &'static [&'static str], operands: usize) -> Wrapper {
    Wrapper { program, subcommands, values: None, operands, runs: Runs::Words }
}

pub(super) const WRAPPERS: &[Wrapper] = &[
    plain("builtin"),
    plain("busybox"),
    plain("chronic"),
    plain("command"),
    plain("corepack"),
    plain("eatmydata"),
    plain("nocorrect"),
    plain("noglob"),
    plain("nohup"),
    plain("setsid"),
    plain("toybox"),
    plain("unbuffer"),
    plain("winpty"),
    exact("caffeinate", &["-t", "-w"], 0),
    exact("chroot", &[], 1),
    exact("chrt", &["-T", "-P", "-D"], 1),
    exact("doas", &["-u", "-C"], 0),
    exact("env", &["-u", "--unset", "-C", "--chdir", "-P", "-a", "--argv0"], 0),
    exact("exec", &["-a"], 0),
    exact("flock", &["-w", "--wait", "--timeout", "-E", "--conflict-exit-code"], 1),
    exact("gosu", &[], 1),
    exact("ionice", &["-c", "--class", "-n", "--classdata"], 0),
    exact("nice", &["-n", "--adjustment"], 0),
    exact("proxychains4", &["-f"], 0),
    exact("stdbuf", &["-i", "-o", "-e", "--input", "--output", "--error"], 0),
    exact("strace", &["-o", "-e", "-p", "-s", "-E", "-u", "-P", "-I", "-a", "-b", "-O", "-S", "-X"], 0),
    exact(
        "sudo",
        &[
            "-u",
            "--user",
            "-g",
            "--group",
            "-h",
            "--host",
            "-p",
            "--prompt",
            "-C",
            "--close-from",
            "-D",
            "--chdir",
            "-R",
            "--chroot",
            "-T",
            "--command-timeout",
            "-U",
            "--other-user",
            "-r",
            "--role",
            "-t",
            "--type",
        ],
        0,
    ),
    exact("taskset", &[], 1),
    exact("time", &["-f", "--format", "-o", "--output"], 0),
    exact("timeout", &["-k", "--kill-after", "-s", "--signal"], 1),
    exact(
        "xargs",
        &[
            "-n",
            "--max-args",
            "-I",
            "-L",
            "-P",
            "--max-procs",
            "-s",
            "--max-chars",
            "-d",
            "--delimiter",
            "-a",
            "--arg-file",
            "-E",
            "-J",
            "-R",
            "-S",
            "--process-slot-var",
        ],
        0,
    ),
    loose("asdf", &["exec"], 0),
    loose("bun", &["x"], 0),
    loose("bunx", &[], 0),
    loose("bundle", &["exec"], 0),
    loose("direnv", &["exec"], 1),
    loose("docker", &["exec", "run"], 1),
    loose("dotenv", &["run"], 0),
    loose("entr", &[], 0),
    loose("firejail", &[], 0),
    loose("git", &["bisect"], 1),
    loose("hatch", &["run"], 0),
    loose("mise", &["exec", "x"], 0),
    loose("npm", &["exec", "x"], 0),
    loose("npx", &[], 0),
    loose("pipenv", &["run"], 0),
    loose("pipx", &["run"], 0),
    loose("pnpm", &["dlx", "exec"], 0),
    loose("podman", &["exec", "run"], 1),
    loose("poetry", &["run"], 0),
    loose("rustup", &["run"], 1),
    loose("runuser", &[], 0),
    loose("script", &[], 1),
    loose("setpriv", &[], 0),
    loose("systemd-run", &[], 0),
    loose("unshare", &[], 0),
    loose("uv", &["run"], 0),
    loose("uv", &["tool"], 1),
    loose("uvx", &[], 0),
    loose("xvfb-run", &[], 0),
    loose("yarn", &["dlx", "exec", "run"], 0),
    Wrapper { program: "git", subcommands: &["submodule"], values: None, operands: 1, runs: Runs::Text },
    Wrapper {
        program: "ssh",
        subcommands: &[],
        values: Some(&[
            "-B", "-b", "-c", "-D", "-E", "-e", "-F", "-I", "-i", "-J", "-L", "-l", "-m", "-O", "-o", "-P",
            "-p", "-Q", "-R", "-S", "-W", "-w",
        ]),
        operands: 1,
        runs: Runs::Text,
    },
    Wrapper {
        program: "watch",
        subcommands: &[],
        values: Some(&["-n", "--interval", "-q"]),
        operands: 0,
        runs: Runs::Text,
    },
];
