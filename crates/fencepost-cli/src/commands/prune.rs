use super::duration;
use crate::{context::Context, output::progress::Progress};
use clap::Args;
use fencepost::{Millis, Result, admin, event};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Remove what is long finished
///
/// Finished tasks that nothing waits for, finished messages, ended runs, unused locks, posts that all have read, revoked
/// keys, and old events. Other commands go on meanwhile.
///
/// Examples:
///   fence prune
///   fence prune --older-than 7d
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Prune {
    /// Remove what ended longer ago than this; at least 7d, because so long anything may be asked for again
    #[arg(long, value_name = "AGE", default_value = "30d", value_parser = duration)]
    older_than: Millis,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Removed {
    tasks: u64,
    messages: u64,
    runs: u64,
    locks: u64,
    deliveries: u64,
    posts: u64,
    keys: u64,
    events: u64,
}

impl Prune {
    /// In batches, until one comes away empty: what is removed may free what it waited for.
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let older_than_ms = Some(self.older_than);
        let mut removed = Removed::default();
        let mut progress = Progress::new(context.json());
        loop {
            progress.show(|| removed.told());
            let pruned = context.call(admin::Prune { older_than_ms }).await?;
            let admin::prune::Pruned { tasks, messages, runs, locks, deliveries, posts, keys, .. } = pruned;
            if tasks + messages + runs + locks + deliveries + posts + keys == 0 {
                break;
            }
            removed.tasks += tasks;
            removed.messages += messages;
            removed.runs += runs;
            removed.locks += locks;
            removed.deliveries += deliveries;
            removed.posts += posts;
            removed.keys += keys;
        }
        loop {
            progress.show(|| removed.told());
            let pruned = context.call(event::Prune { older_than_ms }).await?.removed;
            if pruned == 0 {
                break;
            }
            removed.events += pruned;
        }
        drop(progress);
        context.print(&removed, |removed| format!("{} older than {}", removed.told(), self.older_than))
    }
}

impl Removed {
    fn told(&self) -> String {
        let Removed { tasks, messages, runs, locks, deliveries, posts, keys, events } = self;
        format!(
            "removed {tasks} tasks, {messages} messages, {runs} runs, {locks} locks, {deliveries} deliveries, {posts} posts, \
             {keys} keys and {events} events"
        )
    }
}
