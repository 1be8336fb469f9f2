use super::{Claim, Hold};
use crate::{
    error::Result,
    names::{Resource, TaskId, check},
    op::{Access, Op},
    params, run,
    tx::{Row, Stmt, Tx},
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

impl Op for List {
    const NAME: &'static str = "claim/list";
    const ACCESS: Access = Access::Reader;
    const READS: bool = true;
    type Reply = Claims;

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claims> {
        let limit = self.limit.unwrap_or(100);
        check::range("limit", limit, 1, 1000)?;
        let run = self.run.as_deref();
        run.map_or(Ok(()), run::check_name)?;
        let mut answers = tx
            .pipeline(vec![
                Stmt::new(
                    "select task.board, task.n, task.fence, task.claimed_at, task.until_at, run.key as run_key,
                       run.name as run_name, run.agent as run_agent, run.expires_at as run_expires_at,
                       run.ended_at as run_ended_at
                     from run join task on task.run = run.key
                     where run.ended_at is null and run.expires_at > ?1 and (cast(?2 as text) is null or run.name = ?2)
                     order by task.seq limit ?3",
                    params![tx.now, run, limit],
                ),
                Stmt::new(
                    "select lock.name, lock.fence, lock.claimed_at, lock.until_at, run.key as run_key,
                       run.name as run_name, run.agent as run_agent, run.expires_at as run_expires_at,
                       run.ended_at as run_ended_at
                     from run join lock on lock.run = run.key
                     where run.ended_at is null and run.expires_at > ?1 and (cast(?2 as text) is null or run.name = ?2)
                     order by lock.name limit ?3",
                    params![tx.now, run, limit],
                ),
            ])
            .await?;
        let locks = answers.remove(1).rows;
        let tasks = answers.remove(0).rows;
        let task = |row: &Row| Ok(Resource::Task(TaskId { board: row.get("board")?, n: row.get("n")? }));
        let mut claims = Vec::new();
        for (rows, resource) in [
            (tasks, &task as &(dyn Fn(&Row) -> Result<Resource> + Sync)),
            (locks, &|row: &Row| Ok(Resource::Lock(row.get("name")?))),
        ] {
            for mut row in rows {
                let hold = Hold::read(&mut row)?.filter(|hold| hold.is_alive(tx.now));
                if let Some(hold) = hold {
                    claims.push(hold.claim(&resource(&row)?));
                }
            }
        }
        Ok(Claims { claims })
    }
}
