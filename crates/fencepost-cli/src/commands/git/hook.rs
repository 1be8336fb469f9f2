use super::{
    accepted::{Fences, Late, Memory},
    push,
    repository::{ASK, REQUIRE, Repository},
    session,
};
use crate::{
    context::Context,
    environment::text_variable,
    trailer::{FLEET_DIGITS, Trailer},
};
use clap::{Args, Subcommand};
use fencepost::{Code, Error, Result, Token, admin, claim, claim::Verdict};
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Do the part of one git hook; the hooks of `fence git install` call it
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct Hook {
    #[command(subcommand)]
    name: Name,
}

#[derive(Debug, Subcommand)]
enum Name {
    /// Check the claim before a commit
    PreCommit,
    /// Check the claim before a merge is committed
    PreMergeCommit,
    /// Write the trailer into a new message
    PrepareCommitMsg {
        message: PathBuf,
        source: Option<String>,
        #[arg(hide = true)]
        commit: Option<String>,
    },
    /// Write the trailer into a message that a person has written
    CommitMsg { message: PathBuf },
    /// Check the claim before a push
    PrePush {
        #[arg(hide = true)]
        remote: Vec<String>,
    },
    /// Compare the fences of a push with those that were accepted
    PreReceive,
}

impl Hook {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        if let Name::PreReceive = self.name {
            receive(context).await?;
            return Ok(ExitCode::SUCCESS);
        }
        let token = match text_variable("FENCE_CLAIM")? {
            Some(token) => {
                Some(token.parse().map_err(|e| Error::new(Code::Invalid, format!("FENCE_CLAIM: {e}")))?)
            }
            None => session::token(context, matches!(self.name, Name::PrePush { .. })).await?,
        };
        let Some(token) = token else { return Ok(ExitCode::SUCCESS) };
        let done = match self.name {
            Name::PreCommit | Name::PreMergeCommit => check(context, &token, "commit").await,
            Name::PrePush { .. } => check(context, &token, "push").await,
            Name::PrepareCommitMsg { message, source, .. } => {
                let given = source.is_some_and(|source| source == "message");
                let stage = if given { Stage::Given } else { Stage::Draft };
                write_trailer(context, token, &message, stage).await
            }
            Name::CommitMsg { message } => write_trailer(context, token, &message, Stage::Edited).await,
            Name::PreReceive => Ok(()),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// Refuses if the claim is over, or if nobody can say.
async fn check(context: &Context, token: &Token, effect: &str) -> Result<()> {
    let reply = context.call(claim::Guard::new(token.to_string())).await.map_err(|e| unchecked(e, effect))?;
    if reply.ok {
        return Ok(());
    }
    let why = match (reply.reason, &reply.claim) {
        (Verdict::AlreadyClaimed, Some(claim)) => {
            format!("run `{}` holds it until {}, under fence {}", claim.run, claim.expires_at, claim.fence)
        }
        (Verdict::AlreadyFinished, _) => format!("`{}` is finished", token.resource),
        (Verdict::Cancelled, _) => format!("`{}` was cancelled", token.resource),
        (Verdict::NotFound, _) => "the fleet never issued it".into(),
        _ => "its lease ended, or it was given back".into(),
    };
    Err(Error::new(Code::LeaseExpired, format!("no {effect} under claim `{token}`: {why}"))
        .with("reason", reply.reason)
        .with("token", token.to_string())
        .hint(format!(
            "stop: this claim is over; another run may have the task. A person who works without a claim runs: env -u FENCE_CLAIM git {effect}"
        )))
}

/// A fleet that cannot be asked refuses, because the claim may be over.
fn unchecked(error: Error, effect: &str) -> Error {
    let message = format!("no {effect}: the claim cannot be checked: {}", error.message());
    Error::new(error.code(), message).hint(format!(
        "try again when the fleet can be reached. A person who works without a claim runs: env -u FENCE_CLAIM git {effect}"
    ))
}

/// The state of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Complete, from the command line or a rebase. It may begin with the mark of a comment, and git keeps that.
    Given,
    /// For a person to edit, perhaps.
    Draft,
    /// As the person left it.
    Edited,
}

/// Writes the trailer into the file of a message. Only tasks have one: other claims are checked, and leave no trace.
async fn write_trailer(context: &Context, token: Token, path: &Path, stage: Stage) -> Result<()> {
    if token.resource.task().is_none() {
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::unavailable(format!("`{}` cannot be used: {e}", path.display()));
    let message = fs::read(path).map_err(failed)?;
    // It is the last one since it was a draft, and nobody has to be asked again.
    if stage == Stage::Edited && Trailer::all(&message).last().is_some_and(|last| last.token == token) {
        return Ok(());
    }
    let facts = context.call(admin::About {}).await.map_err(|e| unchecked(e, "commit"))?;
    let trailer = Trailer::new(token, &facts.fleet).ok_or_else(|| {
        Error::unavailable("the fleet has no id").hint("a server older than this fence has none: upgrade it")
    })?;
    let comment = comment_mark().await?;
    let written = trailer.written_to(&message, Some(&comment));
    let written = match stage {
        Stage::Given => written.or_else(|| trailer.written_to(&message, None)),
        Stage::Draft | Stage::Edited => written,
    };
    written.map_or(Ok(()), |written| fs::write(path, written).map_err(failed))
}

/// The mark of lines that git removes from a message.
async fn comment_mark() -> Result<String> {
    let repository = Repository::of_hook().await?;
    // The newer of the two names comes first, if both are set.
    for key in ["core.commentString", "core.commentChar"] {
        match repository.setting(key).await? {
            Some(mark) if mark == "auto" || mark.is_empty() => {}
            Some(mark) => return Ok(mark),
            None => {}
        }
    }
    Ok("#".into())
}

/// Decides about a push, and remembers its fences before git accepts it.
async fn receive(context: &Context) -> Result<()> {
    let input = std::io::read_to_string(std::io::stdin())
        .map_err(|e| Error::new(Code::Invalid, format!("the list of refs cannot be read: {e}")))?;
    let updates = push::updates(&input)?;
    if updates.is_empty() {
        return Ok(());
    }
    let repository = Repository::of_hook().await?;
    let required = repository.settings(REQUIRE).await?;
    for update in updates.iter().filter(|update| push::is_required(&update.name, &required)) {
        if let Some(commit) = push::without_trailer(update)? {
            let (branch, commit) = (short(&update.name), &commit[..commit.len().min(12)]);
            let message =
                format!("`{branch}` takes only commits with a Fence: trailer, and {commit} has none");
            return Err(Error::new(Code::Forbidden, message).with("ref", &update.name).with("commit", commit).hint(
                "commit under a claim (fence guard -- git commit …) in a clone with `fence git install`, or push to another branch",
            ));
        }
    }
    let pushed = push::fences(&updates)?;
    if pushed.fleets.is_empty() {
        return Ok(());
    }
    if let Some(fleet) = repository.setting(ASK).await? {
        ask(context, &fleet, &pushed).await?;
    }
    let memory = Memory::lock(&repository.own_directory()).await?;
    let before = memory.read()?;
    let after = before.after(&pushed).map_err(|late| refusal(&late))?;
    if after != before {
        memory.write(&after)?;
    }
    Ok(())
}

fn short(name: &str) -> &str {
    name.strip_prefix("refs/heads/").unwrap_or(name)
}

fn refusal(late: &[Late]) -> Error {
    let lines = late.iter().map(|Late { task, pushed, accepted }| {
        format!(
            "task `{task}` was already pushed under fence {accepted}, and these commits have fence {pushed}"
        )
    });
    let message = format!("late push: {}", lines.collect::<Vec<_>>().join("; "));
    let task = late.first().map_or("TASK", |late| &late.task);
    Error::new(Code::LeaseExpired, message).hint(format!(
        "stop: another has taken over. If this is no late work (an old commit for another branch), remove the Fence: trailer from the \
         messages; `fence git forget {task}` in the receiving repository accepts any fence once"
    ))
}

/// How many tasks of one push are asked about: each is a call.
const ASKED_MAX: usize = 1000;

/// Asks the fleet about each task of a push. A task that this claim completed is not late. Nobody can be asked about a task of another
/// fleet, so its trailer is refused: a made-up one would otherwise be stored.
async fn ask(context: &Context, address: &str, pushed: &Fences) -> Result<()> {
    let refused = |e: Error| {
        let message = format!("no push: the fleet of this repository cannot be asked: {}", e.message());
        Error::new(e.code(), message).hint(
            "try again when the fleet can be reached; whoever looks after this repository can stop asking: git config --unset fence.ask",
        )
    };
    let fleet = context.open_at(address).await.map_err(refused)?;
    let id = fleet.call(admin::About {}).await.map_err(refused)?.fleet;
    if let Some((other, task, fence)) = pushed.iter().find(|(short_id, ..)| !id.starts_with(short_id)) {
        let message = format!(
            "no push: claim `task/{task}@{fence}` is of fleet {other}, and this repository asks fleet {}",
            id.get(..FLEET_DIGITS).unwrap_or("without an id")
        );
        return Err(Error::new(Code::Forbidden, message).with("fleet", other).hint(
            "remove that Fence: trailer from the messages; a repository that takes work of several fleets does not ask: git config --unset fence.ask",
        ));
    }
    let count = pushed.iter().count();
    if count > ASKED_MAX {
        let message = format!("the push has {count} tasks, and the fleet is asked about at most {ASKED_MAX}");
        return Err(Error::new(Code::TooLarge, message).hint("push it in parts"));
    }
    for (short_id, task, fence) in pushed.iter() {
        let token = format!("task/{task}@{fence}");
        let reply = fleet.call(claim::Guard::new(&token)).await.map_err(refused)?;
        if reply.reason == Verdict::NotFound {
            let message = format!("no push: the fleet does not know claim `{token}`");
            return Err(Error::new(Code::NotFound, message)
                .with("fleet", short_id)
                .hint("remove its Fence: trailer from the messages, and commit under a claim of your own"));
        }
        let by_holder = matches!(reply.ended_by.as_deref(), Some("done" | "verdict"));
        let completed = reply.reason == Verdict::AlreadyFinished && by_holder;
        if !reply.ok && !completed {
            let reason = serde_json::json!(reply.reason);
            let reason = reason.as_str().unwrap_or_default();
            let holder =
                reply.claim.map_or(String::new(), |claim| format!(", run `{}` holds it now", claim.run));
            let message = format!("late push: claim `{token}` is over ({reason}{holder})");
            return Err(Error::new(Code::LeaseExpired, message)
                .with("reason", reply.reason)
                .with("fleet", short_id)
                .hint("stop: work under this claim is not accepted"));
        }
    }
    Ok(())
}
