use super::{Claim, Hold};
use crate::{
    db::tx::{Row, Stmt, Tx},
    engine::op::{Access, Op, erased},
    error::Result,
    names::{Resource, TaskId, check},
    ops::run,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// List the live claims: everyone's, or one run's.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(default)]
    pub run: Option<String>,
    /// At most this many (100 unless said, at most 1000).
    #[serde(default)]
    pub limit: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claims {
    pub claims: Vec<Claim>,
}

macro_rules! held {
    ($table:literal, $names:literal, $order:literal) => {
        concat!(
            "select ",
            $names,
            ", fence, claimed_at, until_at, run.key as run_key, run.name as run_name, run.agent as run_agent,
               run.expires_at as run_expires_at, run.ended_at as run_ended_at
             from run join ",
            $table,
            " on ",
            $table,
            ".run = run.key
             where run.ended_at is null and run.expires_at > ?1 and (until_at is null or until_at > ?1)
             and (cast(?2 as text) is null or run.name = ?2)
             order by ",
            $order,
            " limit ?3"
        )
    };
}

impl Op for List {
    const NAME: &'static str = "claim/list";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Claims;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claims> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let run = self.run.as_deref();
        run.map_or(Ok(()), run::check_name)?;
        let mut answers = tx
            .pipeline(vec![
                Stmt::new(held!("task", "task.board, task.n", "task.seq"), params![tx.now, run, limit]),
                Stmt::new(held!("message", "message.id", "message.id"), params![tx.now, run, limit]),
                Stmt::new(
                    held!(
                        "reader",
                        "reader.agent as reader_agent, reader.channel",
                        "reader.agent, reader.channel"
                    ),
                    params![tx.now, run, limit],
                ),
                Stmt::new(held!("lock", "lock.name", "lock.name"), params![tx.now, run, limit]),
            ])
            .await?;
        let locks = answers.remove(3).rows;
        let (readers, messages, tasks) =
            (answers.remove(2).rows, answers.remove(1).rows, answers.remove(0).rows);
        let task = |row: &Row| Ok(Resource::Task(TaskId { board: row.get("board")?, n: row.get("n")? }));
        let mut claims = Vec::new();
        for (rows, resource) in [
            (tasks, &task as &(dyn Fn(&Row) -> Result<Resource> + Sync)),
            (messages, &|row: &Row| Ok(Resource::Message(row.get("id")?))),
            (readers, &|row: &Row| {
                Ok(Resource::Mentions { agent: row.get("reader_agent")?, channel: row.get("channel")? })
            }),
            (locks, &|row: &Row| Ok(Resource::Lock(row.get("name")?))),
        ] {
            for mut row in rows {
                if let Some(hold) = Hold::read(&mut row)? {
                    claims.push(hold.claim(&resource(&row)?));
                }
            }
        }
        Ok(Claims { claims })
    }
}
