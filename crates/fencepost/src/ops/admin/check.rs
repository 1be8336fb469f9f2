use crate::{
    db::tx::{Stmt, Tx},
    engine::op::{Access, Op, erased},
    error::Result,
    params,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Check the database itself, and the fleet's promises against what is stored, and list every violation.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    pub ok: bool,
    /// How many promises were checked.
    pub checked: usize,
    pub violations: Vec<Violation>,
    /// What the database finds wrong with its own file. Then no promise was checked: nothing read from it is sure.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damage: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Violation {
    /// What should be true.
    pub promise: String,
    /// Where it is not.
    pub resource: String,
}

/// Each promise as a query for the rows that break it.
const PROMISES: &[(&str, &str)] = &[
    (
        "a task is held exactly while it is reviewing or in progress",
        "select 'task/' || board || '-' || n as resource from task
         where (run is not null) <> (status in ('reviewing', 'in_progress'))",
    ),
    (
        "a claim says since when, and a free task has no claim left on it",
        "select 'task/' || board || '-' || n as resource from task
         where (run is null) <> (claimed_at is null) or (run is null and until_at is not null)",
    ),
    (
        "every claim's run exists",
        "select 'task/' || board || '-' || n as resource from task
         where run is not null and not exists (select 1 from run where run.key = task.run)
         union all
         select 'message/' || id as resource from message
         where run is not null and not exists (select 1 from run where run.key = message.run)
         union all
         select 'mentions/' || reader.agent || '/' || channel as resource from reader
         where run is not null and not exists (select 1 from run where run.key = reader.run)
         union all
         select 'lock/' || name as resource from lock
         where run is not null and not exists (select 1 from run where run.key = lock.run)",
    ),
    (
        "an ended run that is settled holds nothing",
        "select 'task/' || board || '-' || n as resource from task
         join run on run.key = task.run where run.ended_at is not null and run.settled = 1
         union all
         select 'message/' || message.id as resource from message
         join run on run.key = message.run where run.ended_at is not null and run.settled = 1
         union all
         select 'mentions/' || reader.agent || '/' || channel as resource from reader
         join run on run.key = reader.run where run.ended_at is not null and run.settled = 1
         union all
         select 'lock/' || lock.name as resource from lock
         join run on run.key = lock.run where run.ended_at is not null and run.settled = 1",
    ),
    (
        "at most one unended run has a name",
        "select 'run/' || name as resource from run where ended_at is null group by name having count(*) > 1",
    ),
    (
        "what was claimed has a fence",
        "select 'task/' || board || '-' || n as resource from task where run is not null and fence < 1
         union all
         select 'message/' || id as resource from message where run is not null and fence < 1
         union all
         select 'mentions/' || agent || '/' || channel as resource from reader where run is not null and fence < 1
         union all
         select 'lock/' || name as resource from lock where run is not null and fence < 1",
    ),
    (
        "no fence was given out twice",
        "select resource from event where kind in ('task.claimed', 'message.claimed', 'mentions.claimed', 'lock.claimed')
         group by resource, fence having count(*) > 1",
    ),
    (
        "no claim was given out under a fence that the item has not reached",
        "select event.resource from event join task on event.resource = 'task/' || task.board || '-' || task.n
         where event.kind = 'task.claimed' and event.fence > task.fence
         union all
         select event.resource from event join message on event.resource = 'message/' || message.id
         where event.kind = 'message.claimed' and event.fence > message.fence
         union all
         select event.resource from event
         join reader on event.resource = 'mentions/' || reader.agent || '/' || reader.channel
         where event.kind = 'mentions.claimed' and event.fence > reader.fence
         union all
         select event.resource from event join lock on event.resource = 'lock/' || lock.name
         where event.kind = 'lock.claimed' and event.fence > lock.fence",
    ),
    (
        "a task was completed at most once",
        "select resource from event where kind = 'task.completed' group by resource having count(*) > 1",
    ),
    (
        "the count of what a task waits for is right",
        // Grouped, not asked task by task: after a large import PostgreSQL knows nothing of the tables yet, and would
        // read all tasks for each (30 s and more for 12,000).
        "select 'task/' || task.board || '-' || task.n as resource from task
         left join (
           select edge.task, count(*) as count from edge join task as other on other.seq = edge.depends_on
           where other.status <> 'completed' group by edge.task) as waits on waits.task = task.seq
         where task.waiting_on <> coalesce(waits.count, 0)",
    ),
    (
        "both ends of every dependency exist",
        "select 'edge ' || task || ' after ' || depends_on as resource from edge
         where not exists (select 1 from task where seq = edge.task)
         or not exists (select 1 from task where seq = edge.depends_on)",
    ),
    (
        "a finished task says when, and no other does",
        "select 'task/' || board || '-' || n as resource from task
         where (finished_at is not null) <> (status in ('completed', 'failed', 'cancelled'))",
    ),
    (
        "an assigned task has an assignee, and an offer says to whom",
        "select 'task/' || board || '-' || n as resource from task
         where (status = 'pending' and assignee is null)
         or (status in ('offered', 'reviewing') and offered_to is null)
         or (status = 'unassigned' and assignee is not null)",
    ),
    (
        "every task has its text",
        "select 'task/' || board || '-' || n as resource from task
         where not exists (select 1 from task_doc where task_doc.task = task.seq)",
    ),
    (
        "no number is used beyond its board's counter",
        "select 'task/' || task.board || '-' || task.n as resource from task
         left join board on board.name = task.board where board.name is null or task.n >= board.next_n",
    ),
    (
        "the tags know what is ready",
        "select 'task/' || task.board || '-' || task.n as resource from task_tag
         join task on task.seq = task_tag.task
         where task_tag.ready <> task.ready or task_tag.priority <> task.priority or task_tag.board <> task.board",
    ),
    (
        "every tag of a task has its copy",
        "select 'task/' || board || '-' || n as resource from task
         where (select count(distinct value) from json_each(coalesce(task.tags, '[]')))
           <> (select count(*) from task_tag where task_tag.task = task.seq)",
    ),
    (
        "what belongs to a task has its task",
        "select 'task_doc ' || task as resource from task_doc
         where not exists (select 1 from task where seq = task_doc.task)
         union all
         select 'task_tag ' || task as resource from task_tag
         where not exists (select 1 from task where seq = task_tag.task)
         union all
         select 'note ' || task as resource from note where not exists (select 1 from task where seq = note.task)",
    ),
    (
        "attempts stay within their limits",
        "select 'task/' || board || '-' || n as resource from task where attempts < 0 or attempts > max_attempts
         union all
         select 'message/' || id as resource from message where attempts < 0 or attempts > max_attempts",
    ),
    (
        "a message is held exactly while it is processing",
        "select 'message/' || id as resource from message
         where (run is not null) <> (status = 'processing') or (run is null) <> (claimed_at is null)
         or (run is null and until_at is not null)",
    ),
    (
        "a finished message says when, and until when it is kept; no other does",
        "select 'message/' || id as resource from message
         where (finished_at is not null) <> (status in ('processed', 'failed'))
         or (finished_at is null) <> (prune_at is null)",
    ),
    (
        "a message was completed at most once",
        "select resource from event where kind = 'message.completed' group by resource having count(*) > 1",
    ),
    (
        "outputs belong to the claim that completed their message",
        "select 'message/' || message_output.message as resource from message_output
         left join message on message.id = message_output.message
         where message.id is null or message.status <> 'processed' or message_output.fence <> message.last_fence",
    ),
    (
        "what is completed has no payload left, except in an inbox, and what is not has its text",
        "select 'message/' || message.id as resource from message
         left join message_doc on message_doc.message = message.id
         where message_doc.message is null
         or (message.status = 'processed' and message.outcome <> 'taken' and message.mailbox not like 'inbox/%'
           and message_doc.payload is not null)
         union all
         select 'message_doc ' || message as resource from message_doc
         where not exists (select 1 from message where id = message_doc.message)",
    ),
    (
        "every message has its mailbox, and a lane exactly if that is strict",
        "select 'message/' || message.id as resource from message left join mailbox on mailbox.name = message.mailbox
         where mailbox.name is null or (mailbox.in_order = 1) <> (message.lane is not null)
         or (message.lane is null and message.behind = 1)",
    ),
    (
        "mentions are held with a claim that says since when and how far it goes",
        "select 'mentions/' || agent || '/' || channel as resource from reader
         where (run is null) <> (claimed_at is null) or (run is null) <> (given_n is null)
         or (run is null and until_at is not null)",
    ),
    (
        "a reader knows its last mention, and since when it waits",
        "select 'mentions/' || reader.agent || '/' || reader.channel as resource from reader
         left join (select agent, channel, max(n) as n from mention group by agent, channel) as last
           on last.agent = reader.agent and last.channel = reader.channel
         where (reader.mentioned_n <> coalesce(last.n, 0) and (last.n is not null or reader.mentioned_n > reader.read_n))
         or (reader.mentioned_n > reader.read_n) <> (reader.since is not null)",
    ),
    (
        "a mention is of a post, and its agent has a place in the channel",
        "select 'mentions/' || agent || '/' || channel as resource from mention
         where not exists (select 1 from post where post.channel = mention.channel and post.n = mention.n)
         or not exists (select 1 from reader where reader.agent = mention.agent and reader.channel = mention.channel)",
    ),
    (
        "a run that was given a trigger has an agent, and says what it was given",
        "select 'run/' || name as resource from run
         where (trigger_type is null) <> (given is null) or (trigger_type is not null and agent is null)",
    ),
    (
        "an agent that goes silent is noticed, unless it left",
        "select 'agent/' || name as resource from agent where strands_at is null and left_at is null",
    ),
    (
        "posts are numbered without a gap, from the first that is kept, and nobody has read further",
        "select 'channel/' || channel.name as resource from channel
         left join (select channel, max(n) - min(n) + 1 - count(*) as gaps, max(n) as last from post group by channel) as posts
           on posts.channel = channel.name
         where coalesce(posts.gaps, 0) <> 0 or channel.next_n - 1 <> coalesce(posts.last, 0)
         union all
         select 'channel/' || channel.name as resource from channel join reader on reader.channel = channel.name
         where reader.read_n >= channel.next_n",
    ),
    (
        "whatever was delivered from outside became a message",
        "select 'delivery/' || source || '/' || id as resource from delivery where message is null",
    ),
    (
        "in every lane it is the turn of one message",
        "select 'mailbox/' || mailbox as resource from message where lane is not null and finished_at is null
         group by mailbox, lane having sum(1 - behind) <> 1",
    ),
];

/// Enough to see what is wrong.
const EACH: i64 = 20;

impl Op for Check {
    const NAME: &'static str = "admin/check";
    /// It reads every table: a reader could keep the database busy with nothing else.
    const ACCESS: Access = Access::Admin;
    const READS: bool = true;
    type Reply = Report;
    erased!();

    async fn run(self, tx: &mut Tx<'_>) -> Result<Report> {
        let damage = tx.damage().await?;
        if !damage.is_empty() {
            return Ok(Report { ok: false, checked: 0, violations: Vec::new(), damage });
        }
        let statements = PROMISES.iter().map(|(_, sql)| Stmt::new(sql, params![])).collect();
        let answers = tx.pipeline(statements).await?;
        let mut violations = Vec::new();
        for ((promise, _), answer) in PROMISES.iter().zip(answers) {
            for row in answer.rows.iter().take(EACH as usize) {
                violations.push(Violation { promise: (*promise).into(), resource: row.get("resource")? });
            }
        }
        Ok(Report { ok: violations.is_empty(), checked: PROMISES.len(), violations, damage })
    }
}
