//! Exports tasks as expiry would write them now, without claims.

use super::{Read, names, number, that_fit};
use crate::{
    db::{Batch, Row, Tx, by_keys},
    error::{Error, Result},
    lease::Hold,
    ops::loops::is_story,
    ops::task::{
        MAX_ATTEMPTS, Now, PRIORITY, Record, Status, columns,
        import::{CheckpointItem, FullLine, Item, Line, NOTES_MAX, State, exported_key},
    },
    params,
};
use std::collections::HashMap;

pub(super) async fn tasks(tx: &mut Tx<'_>, after: &str, limit: i64, boards: &[String]) -> Result<Read<Item>> {
    let sizes = "select task.seq, cast(coalesce(octet_length(doc.body), 0) + coalesce(octet_length(doc.done_when), 0)
           + coalesce(octet_length(doc.origin), 0) + coalesce(octet_length(doc.output), 0) + coalesce(octet_length(doc.checkpoint), 0)
           + coalesce((select sum(octet_length(body)) from note where note.task = task.seq), 0) as bigint) as size
         from task left join task_doc as doc on doc.task = task.seq
         where task.seq > ?1 and (?3 = 0 or task.board in (select value ->> 'name' from json_each(?4)))
         order by task.seq limit ?2";
    let given = params![number(after)?, limit + 1, !boards.is_empty(), names(boards)?];
    let (fit, more) = that_fit(tx.query(sizes, given).await?, limit)?;
    let keys = fit.iter().map(|row| row.get("seq")).collect::<Result<Vec<i64>>>()?;
    let Some(last) = keys.last() else { return Ok((Vec::new(), None)) };
    let last = more.then(|| last.to_string());
    let now = Now::read(tx).await?;
    let mut batch = Batch::new();
    let records = batch.add(by_keys!(read, keys.as_slice(), columns!("where task.seq"), "order by task.seq"));
    let docs = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select task_doc.task, body, done_when, origin, output, checkpoint, told
         from task_doc join task on task.seq = task_doc.task where task_doc.task",
        ""
    ));
    let after = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select edge.task, other.board || '-' || other.n as id from edge
         join task as other on other.seq = edge.depends_on where edge.task",
        "order by other.seq"
    ));
    // The latest notes of each kind: as many as an import accepts, and as `show` returns.
    let notes = batch.add(by_keys!(
        read,
        keys.as_slice(),
        "select task, kind, at, agent, body from (
           select id, task, kind, at, agent, body,
             row_number() over (partition by task, kind order by id desc) as nth from note where task",
        ") as notes where nth <= ?2 order by id",
        NOTES_MAX
    ));
    let mut answers = tx.send(batch).await?;
    let records = answers.take(records).rows.into_iter().map(Record::read).collect::<Result<Vec<_>>>()?;
    let at: HashMap<i64, usize> = records.iter().enumerate().map(|(i, task)| (task.seq, i)).collect();
    let mut items: Vec<Item> = records.into_iter().map(|task| item(now.of(task))).collect();
    for row in answers.take(docs).rows {
        items[at[&row.get("task")?]].add_texts(&row)?;
    }
    for row in answers.take(after).rows {
        items[at[&row.get("task")?]].after.push(row.get("id")?);
    }
    for row in answers.take(notes).rows {
        let line = Line::Full(FullLine {
            text: row.get("body")?,
            agent: row.get("agent")?,
            at: Some(row.get("at")?),
        });
        let item = &mut items[at[&row.get("task")?]];
        if row.get::<String>("kind")? == "progress" { &mut item.progress } else { &mut item.notes }
            .push(line);
    }
    Ok((items, last))
}

fn item(task: Record) -> Item {
    let status = task.status();
    let is_offered = matches!(status, Status::Offered | Status::Reviewing);
    let held = i64::from(status == Status::InProgress);
    // Loops are not exported. Without its loop nobody may take the story for a task of the pool.
    let story = is_story(&task).then(|| format!("a story of loop `{}`: start the loop again", task.id.board));
    let owner = |hold: &Hold| hold.agent.clone().unwrap_or_else(|| hold.run.clone());
    Item {
        key: Some(task.key.clone().unwrap_or_else(|| exported_key(&task))),
        id: task.id.to_string(),
        title: task.title,
        kind: task.kind,
        priority: Some(task.priority).filter(|priority| *priority != PRIORITY),
        tags: task.tags,
        status: match status {
            Status::Completed => State::Completed,
            Status::Failed => State::Failed,
            Status::Cancelled => State::Cancelled,
            _ => State::Unassigned,
        },
        to: task.assignee.filter(|_| !is_offered && story.is_none()),
        offer: task.offered_to.filter(|_| is_offered),
        offered_at: task.offered_at.filter(|_| is_offered),
        accepted_at: task.accepted_at,
        rejection_reason: task.rejection_reason,
        parked: task.parked.or(story).filter(|_| !status.is_finished()),
        delayed_until: task.delayed_until.filter(|_| !status.is_finished()),
        failure_reason: task.failure_reason.filter(|_| status != Status::Completed),
        owner: task.phase.hold().map(owner),
        source: task.source,
        creator: task.creator,
        max_attempts: Some(task.max_attempts).filter(|most| *most != MAX_ATTEMPTS),
        // An export does not use up the holder's attempt.
        attempts: task.attempts - held,
        created_at: Some(task.created_at),
        finished_at: task.phase.finished_at(),
        ..Item::default()
    }
}

impl Item {
    fn add_texts(&mut self, row: &Row) -> Result<()> {
        let json = |text: Option<String>| text.map(|text| serde_json::from_str(&text)).transpose();
        self.body = row.get("body")?;
        self.done_when = row.get("done_when")?;
        self.origin = json(row.get("origin")?).map_err(Error::internal)?;
        self.output = row.get::<Option<String>>("output")?.filter(|_| self.status == State::Completed);
        let checkpoint: Option<String> = row.get("checkpoint")?;
        self.checkpoint = checkpoint.as_deref().map(CheckpointItem::read).transpose()?;
        self.notify = !row.get::<bool>("told")? && matches!(self.status, State::Completed | State::Failed);
        Ok(())
    }
}
