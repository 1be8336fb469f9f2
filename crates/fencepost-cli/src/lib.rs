//! `fence`: exactly-once work for fleets of AI agents, from the command line.
//!
//! A command translates: words into an op, the reply into text. The rules are in the engine.
//!
//! The modules are layers, from the bottom up. A module imports only from modules that come before it in this list;
//! the test `imports_go_down_only` reads the list and the imports.
//!
//! - `names`: unique names and digests
//! - `guarded`: does a shell's command line name a guarded command?
//! - `trailer`: the trailer of a git commit that was made under a claim
//! - `environment`: variables, and the user's directories
//! - `output`: standard output and standard error, tables, times, colours, untrusted text, progress, help
//! - `private_files`: files that only this user can have made
//! - `edits`: entries of ours in other programs' settings files
//! - `identity`: the run that a command acts for, by the processes around it
//! - `trust`: which files of a project, and which fleets of others, the user trusts
//! - `settings`: flags, variables and `fence.toml`
//! - `location`: where the fleet is, and who can read its files
//! - `session`: what an agent's session holds, lost and acknowledged
//! - `context`: shared by all commands: the fleet, the run, the agent, a way to print
//! - `run_files`: the log and the processes of a run that a worker of this machine started
//! - `keeper`: the process that renews a run while its owner lives
//! - `worktree`: a git work tree for each attempt at a task, and merging its branch
//! - `supervise`: a command that runs under a claim
//! - `view`: live views on the terminal
//! - `commands`: one command, one file
//! - `command_line`: the definition of all commands, their help, and wrong command lines
//!
//! This is a library although only the binary uses it: cargo compiles a library while the crates below it are still being
//! turned into machine code, and a binary only after them. It makes `make` 18 s faster, of 4 min 4 s.

mod command_line;
mod commands;
mod context;
mod edits;
mod environment;
mod guarded;
mod identity;
mod keeper;
mod location;
mod names;
mod output;
mod private_files;
mod run_files;
mod session;
mod settings;
mod supervise;
mod trailer;
mod trust;
mod view;
mod worktree;

use std::process::ExitCode;

/// Runs the command that this process was started with.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> ExitCode {
    command_line::run().await
}
