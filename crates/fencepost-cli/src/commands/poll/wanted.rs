//! The work that a poll wants: the options that `poll` and `work` have in common.

use super::super::one_of;
use clap::{Args, ValueEnum};
use fencepost::{
    Result,
    agent::{self, Type, poll::PoolMode},
};

#[derive(Debug, Clone, Args)]
pub struct Wanted {
    /// Only these types: task_offered, task_assigned, inbox_message, unread_mentions, unread_wakeup, tasks_finished, pool_task
    #[arg(long, value_name = "TYPE", value_delimiter = ',')]
    accept: Vec<String>,
    /// The pool: take a task, only report that it has tasks, or ignore it  [default: take]
    #[arg(long, value_enum, hide_possible_values = true, value_name = "take|notify|off")]
    pool: Option<Pool>,
    /// Only tasks of the pool on this board; your offers, assigned tasks, messages and mentions are not limited
    #[arg(long)]
    board: Option<String>,
    /// Only tasks of the pool with this tag
    #[arg(long)]
    tag: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Pool {
    Take,
    Notify,
    Off,
}

impl Wanted {
    /// The same for a poller that knows every type: without `--accept` it takes wake-ups, too.
    pub fn poll_for_all(&self) -> Result<agent::Poll> {
        let poll = self.poll()?;
        Ok(agent::Poll { accept: Some(poll.accept.unwrap_or_else(|| Type::ORDER.to_vec())), ..poll })
    }

    /// A poll for this work, without its agent and its run.
    pub fn poll(&self) -> Result<agent::Poll> {
        let accept = self
            .accept
            .iter()
            .map(|text| one_of("type of trigger", &Type::ORDER, Type::as_str, text))
            .collect::<Result<Vec<_>>>()?;
        Ok(agent::Poll {
            accept: (!accept.is_empty()).then_some(accept),
            pool: match self.pool {
                None | Some(Pool::Take) => PoolMode::Take,
                Some(Pool::Notify) => PoolMode::Notify,
                Some(Pool::Off) => PoolMode::Off,
            },
            board: self.board.clone(),
            tag: self.tag.clone(),
            ..agent::Poll::default()
        })
    }
}
