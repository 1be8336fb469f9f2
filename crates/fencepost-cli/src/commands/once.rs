mod execute;
mod kept;
mod text;

use super::{duration, one_of};
use crate::context::Context;
use clap::Args;
use fencepost::{
    Code, Error, Millis, Result,
    once::{self, Status},
};
use std::{ffi::OsString, process::ExitCode};

/// Run a command that must happen once; later callers get its result
///
/// The first caller with a KEY runs the command. Its exit code and its output (the first 64 KiB of each stream) are kept. Later
/// callers run nothing: they print the kept output and exit with the kept code, also if the command failed. While the command
/// runs, others get exit code 4, or wait with --wait. The same KEY with another command is refused.
///
/// The claim is renewed while the command runs, and the command is ended before its lease ends, as by fence lock. If fence or the
/// machine dies, if the claim is lost, or if a signal ends the command, nobody knows whether the effect happened: the key is in
/// doubt, and callers get exit code 4 until somebody finds out. A command that was never started leaves the key unused.
///
/// The command's environment has the key in FENCE_ONCE_KEY, for services that accept an idempotency key, and the token of its claim
/// in FENCE_ONCE. FENCE_CLAIM and FENCE_RUN stay as they are. If FENCE_CLAIM is set and that claim was lost, nothing is run, with
/// exit code 5.
///
/// Without a command it shows the effect. Effects are kept until somebody removes them.
///
/// Examples:
///   fence once slack-812 -- ./send-to-slack
///   fence once deploy-v7 --wait -- ./deploy.sh v7
///   fence once invoice-17 --check './is-sent 17' -- ./send-invoice 17
///   fence once invoice-17 --happened --note 'the customer has it'
///   fence once --list --status in_doubt
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Once {
    /// The key of the effect, such as slack-812
    #[arg(required_unless_present = "list")]
    key: Option<String>,
    /// If somebody else runs it, wait up to this long for the result; without a value, for ever
    #[arg(long, value_parser = duration, value_name = "DURATION", num_args = 0..=1, require_equals = true, requires = "command")]
    wait: Option<Option<Millis>>,
    /// Run it again if it failed
    #[arg(long, requires = "command")]
    retry_failed: bool,
    /// Run it again if it is in doubt, although it may have happened
    #[arg(long, requires = "command", conflicts_with = "check")]
    retry_in_doubt: bool,
    /// If it is in doubt, find out by this shell command: exit 0 means that it happened (its output is kept as the result), exit 1
    /// that it did not (then CMD is run), anything else that nobody knows
    #[arg(long, value_name = "CHECK", requires = "command")]
    check: Option<OsString>,
    /// Lease: how long until the key is in doubt if this machine dies
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "1m", requires = "command")]
    ttl: Millis,
    /// The longest time for the command; then it is ended, and the key is in doubt
    #[arg(long, value_parser = duration, value_name = "DURATION", requires = "command")]
    max: Option<Millis>,
    /// The time between TERM and KILL
    #[arg(long, value_parser = duration, value_name = "DURATION", default_value = "10s", requires = "command")]
    grace: Millis,
    /// It is in doubt, and you found out that it happened
    #[arg(long, conflicts_with_all = ["not_happened", "remove", "list", "command"])]
    happened: bool,
    /// It is in doubt, and you found out that it did not happen: the next caller runs it
    #[arg(long, conflicts_with_all = ["remove", "list", "command"])]
    not_happened: bool,
    /// How you found out
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["remove", "list", "command"])]
    note: Option<String>,
    /// Forget it: the next caller runs it again
    #[arg(long, conflicts_with_all = ["list", "command"])]
    remove: bool,
    /// List the effects
    #[arg(long, conflicts_with_all = ["key", "command"])]
    list: bool,
    /// Only effects with this status: unused, running, succeeded, failed or in_doubt
    #[arg(long, requires = "list")]
    status: Option<String>,
    /// Start after this key, the last one of the previous page
    #[arg(long, value_name = "KEY", requires = "list")]
    start_after: Option<String>,
    /// The most effects to show  [default: 100]
    #[arg(long, requires = "list")]
    limit: Option<i64>,
    /// The command
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Once {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let Some(key) = self.key.clone() else { return self.list(context).await };
        if !self.command.is_empty() {
            return self.execute(key, context).await;
        }
        let show = context.call(once::Show { key: key.clone() });
        let reply = match (self.happened || self.not_happened, self.remove) {
            (true, _) => self.resolve(show.await?.effect, context).await?,
            (false, true) => context.call(once::Remove { key }).await?,
            (false, false) if self.note.is_some() => {
                return Err(Error::invalid("note", "is for --happened and --not-happened"));
            }
            (false, false) => show.await?,
        };
        let removed = self.remove;
        context.print(&reply, |reply| match removed {
            true => format!("{} is removed: the next caller runs its command", reply.effect.key),
            false => text::page(&reply.effect, &context.terminal),
        })
    }

    /// Says whether the effect happened, which must be in doubt. The token makes sure that it is the doubt that was seen here.
    async fn resolve(&self, effect: once::Effect, context: &Context) -> Result<once::Changed> {
        if effect.status == Status::Running {
            let message = format!("effect `{}` is running, not in doubt", effect.key);
            return Err(Error::new(Code::AlreadyClaimed, message)
                .hint(format!("fence once {} shows who runs it", effect.key)));
        }
        let note = self.note.clone();
        let resolve =
            once::Resolve { token: effect.token, happened: self.happened, note, ..Default::default() };
        context.call(resolve).await
    }

    async fn list(self, context: &Context) -> Result<ExitCode> {
        let status = self.status.as_deref();
        let status = status.map(|text| one_of("status", &Status::ALL, Status::as_str, text)).transpose()?;
        let list = once::List { status, after: self.start_after, limit: self.limit };
        let reply = context.call(list).await?;
        context.print(&reply, |reply| text::list(reply, &context.terminal))
    }
}
