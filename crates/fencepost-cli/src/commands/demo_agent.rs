use super::demo::{
    cast::STAGE,
    director::{BOARD, FROZEN, KILLED, Scene},
};
use crate::{context::Context, environment::variable, output::streams, private_files::write_whole};
use clap::Args;
use fencepost::{
    Code, Error, Result,
    agent::{Trigger, Type},
    channel, inbox, run, task,
};
use rustix::process::getppid;
use std::{
    collections::BTreeMap,
    fs::File,
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

/// A file with a line for each process, which is the name of its run.
const PROCESSES: &str = "processes";

/// A scripted agent of `fence demo`, which `fence work` starts for a trigger
#[derive(Debug, Args)]
#[command(hide = true)]
pub struct DemoAgent {}

impl DemoAgent {
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let file = variable("FENCE_TRIGGER_FILE").ok_or_else(|| {
            Error::new(Code::Invalid, "FENCE_TRIGGER_FILE is not set: fence demo starts this")
        })?;
        let text = std::fs::read_to_string(&file)
            .map_err(|e| Error::unavailable(format!("`{file}` cannot be read: {e}")))?;
        let trigger: Trigger = serde_json::from_str(&text).map_err(Error::internal)?;
        File::options()
            .append(true)
            .create(true)
            .open(stage().join(PROCESSES))
            .and_then(|mut file| file.write_all(format!("{}\n", trigger.run).as_bytes()))
            .map_err(|e| Error::unavailable(format!("`{PROCESSES}` cannot be written: {e}")))?;
        Actor { context, trigger }.act().await
    }
}

struct Actor<'a> {
    context: &'a Context,
    trigger: Trigger,
}

impl Actor<'_> {
    async fn act(&self) -> Result<ExitCode> {
        match self.trigger.kind {
            Type::TaskOffered => self.accept().await?,
            Type::TaskAssigned | Type::PoolTask => return self.work().await,
            Type::InboxMessage => self.answer().await?,
            Type::UnreadMentions | Type::UnreadWakeup => self.post().await?,
            // The lead is told; the worker that started this settles.
            Type::TasksFinished | Type::PoolTasksAvailable => self.think(200).await?,
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Works for a while, and says so.
    async fn think(&self, millis: u64) -> Result<()> {
        for step in ["reading", "thinking", "writing"] {
            streams::print(step)?;
            // Real time: the demo is to be watched.
            tokio::time::sleep(Duration::from_millis(millis / 3)).await;
        }
        Ok(())
    }

    fn token(&self) -> String {
        self.trigger.claims.first().map(|claim| claim.token.clone()).unwrap_or_default()
    }

    async fn accept(&self) -> Result<()> {
        self.think(300).await?;
        let task = self.trigger.task.as_ref().map(|task| task.id.clone()).unwrap_or_default();
        let accept = task::Accept {
            task,
            agent: self.context.required_agent()?,
            token: Some(self.token()),
            request: self.context.request(),
        };
        self.context.call(accept).await.map(drop)
    }

    async fn work(&self) -> Result<ExitCode> {
        let task =
            self.trigger.task.as_ref().ok_or_else(|| Error::internal("a task trigger without a task"))?;
        match task.title.as_str() {
            KILLED if !exists("killed.done") => {
                self.show("killed")?;
                // Until it is killed with its worker. On a busy machine another attempt may have lost its lease before that.
                while std::fs::read_to_string(stage().join("killed.done"))
                    .map_or(true, |killed| killed == self.trigger.run)
                {
                    self.think(300).await?;
                }
            }
            FROZEN if !exists("frozen.done") => {
                self.show("frozen")?;
                return self.hand_in_late().await;
            }
            _ => self.think(700).await?,
        }
        let done = task::Done { token: self.token(), output: Some(format!("{}: done", task.title)) };
        self.context.call(done).await?;
        Ok(ExitCode::SUCCESS)
    }

    /// Tells the director which processes these are.
    fn show(&self, name: &str) -> Result<()> {
        let scene = Scene {
            agent: self.context.required_agent()?,
            run: self.trigger.run.clone(),
            token: self.token(),
            worker: getppid().map_or(0, |pid| pid.as_raw_nonzero().get()),
            child: i32::try_from(std::process::id()).unwrap_or_default(),
        };
        write(name, &serde_json::to_string(&scene).map_err(Error::internal)?)
    }

    /// Is frozen, and hands in its result after its lease: the director stops this process, and lets it go on.
    async fn hand_in_late(&self) -> Result<ExitCode> {
        while !exists("thaw") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let done = task::Done { token: self.token(), output: Some("late".into()) };
        let answer = self.context.call(done).await;
        let said = match &answer {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.code().as_str().to_owned(),
        };
        write("late", &said)?;
        answer.map(|_| ExitCode::SUCCESS)
    }

    /// A complaint becomes a task, everything else gets an answer.
    async fn answer(&self) -> Result<()> {
        self.think(300).await?;
        for (claim, item) in self.trigger.claims.iter().zip(&self.trigger.messages) {
            let text = item.content.as_ref().map(|content| content.text.clone()).unwrap_or_default();
            if text.contains("slow") {
                let delegate = inbox::Delegate {
                    message: claim.token.clone(),
                    title: Some(format!("fix: {text}")),
                    board: Some(BOARD.into()),
                    ..Default::default()
                };
                self.context.call(delegate).await?;
            } else {
                let respond = inbox::Respond { message: claim.token.clone(), text: "you are welcome".into() };
                self.context.call(respond).await?;
            }
        }
        Ok(())
    }

    async fn post(&self) -> Result<()> {
        self.think(300).await?;
        let post = channel::Post {
            channel: "general".into(),
            body: "I have seen it".into(),
            author: self.context.agent(),
            ..Default::default()
        };
        self.context.call(post).await?;
        let settle = run::Settle { run: self.trigger.run.clone(), ..run::Settle::default() };
        self.context.call(settle).await.map(drop)
    }
}

fn stage() -> PathBuf {
    variable(STAGE).unwrap_or_default().into()
}

fn exists(name: &str) -> bool {
    stage().join(name).exists()
}

/// Writes a file of the demo.
fn write(name: &str, text: &str) -> Result<()> {
    write_whole(&stage().join(name), text)
}

/// The number of processes that were started for each run.
pub fn processes(stage: &Path) -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(stage.join(PROCESSES)).unwrap_or_default();
    let mut counts = BTreeMap::new();
    text.lines().for_each(|run| *counts.entry(run.to_owned()).or_default() += 1);
    counts
}
