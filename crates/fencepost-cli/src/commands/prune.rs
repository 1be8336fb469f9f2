use super::duration;
use crate::{context::Context, output::progress::Progress};
use clap::Args;
use fencepost::{Millis, Result, admin, event};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;

/// Remove old data
///
/// It removes finished tasks that no task depends on, finished messages, ended runs, unused locks, posts that everybody has read,
/// revoked keys, and events. Other commands can run meanwhile.
///
/// Examples:
///   fence prune
///   fence prune --older-than 7d
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct Prune {
    /// Remove what ended longer ago than this; at least 7d, because requests may be repeated for so long
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
    /// Prunes in batches until one removes nothing: a removed task may have been the last that depended on another.
    pub async fn run(self, context: &Context) -> Result<ExitCode> {
        let older_than_ms = Some(self.older_than);
        let mut removed = Removed::default();
        let mut progress = Progress::new(context.json());
        loop {
            progress.show(|| removed.describe());
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
            progress.show(|| removed.describe());
            let pruned = context.call(event::Prune { older_than_ms }).await?.removed;
            if pruned == 0 {
                break;
            }
            removed.events += pruned;
        }
        drop(progress);
        context.print(&removed, |removed| format!("{} older than {}", removed.describe(), self.older_than))
    }
}

impl Removed {
    fn describe(&self) -> String {
        let Removed { tasks, messages, runs, locks, deliveries, posts, keys, events } = self;
        format!(
            "removed {tasks} tasks, {messages} messages, {runs} runs, {locks} locks, {deliveries} deliveries, {posts} posts, \
             {keys} keys and {events} events"
        )
    }
}
