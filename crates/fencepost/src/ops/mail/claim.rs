use super::{
    Message, Phase, by_name,
    record::{Record, columns, unheld},
    rows_of,
    view::{full, full_after},
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Batch, Delivered, Row, Stmt, Subscription, Tx, by_keys, set},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    lease::delivery::redeliver,
    lease::{Hold, hold::next_fence, run::Holder},
    limits::{CLAIMS_MAX, MAILBOXES_MAX, check},
    ops::claim,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Claim the next messages of one or more mailboxes. The mailbox whose next message has the highest priority, then the
/// greatest age, comes first. A message whose last claim expired is handed out alone.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    pub mailboxes: Vec<String>,
    /// The run that will hold them; opened if it does not exist.
    pub run: String,
    /// The agent that the run belongs to.
    #[serde(default)]
    pub agent: Option<String>,
    /// At most this many (default 1, at most 1000).
    #[serde(default)]
    pub count: Option<i64>,
    /// Lease: others may claim this run's items if it is not renewed for this long (default: the mailbox's setting).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// Limit on the duration of these claims, however often they are renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// Wait up to this long for a message (at most 10 minutes; repeat the call to wait longer). Each search renews the
    /// run's lease, but waiting does not: renew a run that holds other items, or its lease expires.
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Claim {
    /// Claims the next message of one mailbox.
    pub fn next(mailbox: impl Into<String>, run: impl Into<String>) -> Self {
        Self { mailboxes: vec![mailbox.into()], run: run.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Claimed {
    pub claims: Vec<ClaimedMessage>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClaimedMessage {
    pub claim: claim::Claim,
    pub message: Message,
}

impl Op for Claim {
    const NAME: &'static str = "mail/claim";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"mailboxes":["builds"],"run":"r-1"}"#;
    refuses![NoneReady, Paused, LeaseExpired];
    type Reply = Claimed;
    erased!();

    fn prelude(&self) -> Prelude {
        Prelude::claims(&self.run, self.ttl_ms).once(self.request.as_deref())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    /// A paused mailbox is worth waiting for: it may be resumed.
    fn not_yet(answer: Result<&Claimed, &Error>) -> bool {
        answer.is_err_and(|e| e.is_not_yet() || e.code() == Code::Paused)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Claimed> {
        let names = check_names(&self.mailboxes)?;
        crate::lease::run::check_name(&self.run)?;
        check::optional_name("agent", self.agent.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::request(self.request.as_deref())?;
        let count = self.count.unwrap_or(1);
        check::range("count", count, 1, CLAIMS_MAX)?;
        if tx.opening.is_repeat_by(Some(&self.run), "message.claimed", None)? {
            return repeated(tx).await;
        }
        let ttl = match self.ttl_ms {
            // A live run keeps its lease. A new run gets the longest of the mailboxes' leases.
            None if tx.opening.run.as_ref().is_none_or(|run| !run.is_alive(tx.now)) => {
                let found = by_name(&tx.one(rows_of(names.iter().copied())?).await?.rows)?;
                Some(found.values().map(|mailbox| mailbox.settings.ttl_ms).max().unwrap_or(super::TTL))
            }
            given => given,
        };
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), ttl)?;
        names.iter().try_for_each(|name| tx.caller.may_take(name, holder.agent.as_deref()))?;
        let (entered, found) = pick(tx, holder.enter(tx.now), &names, count).await?;
        let run_key = holder.key(&entered)?;
        Ok(Claimed { claims: take(tx, found, &holder, run_key, self.max_ms, None).await? })
    }
}

/// The two halves of a batch of messages that one trigger hands out. If the claims expire twice, the batch comes back
/// in these halves. They are stored at the claim, because later the members of the batch are unknown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Halves {
    number: i64,
    /// The last message of the first half.
    middle: i64,
}

impl Halves {
    pub fn of(messages: &[Record], run_key: i64) -> Option<Self> {
        let mut ids: Vec<i64> = messages.iter().map(|message| message.id).collect();
        ids.sort_unstable();
        (ids.len() > 1).then(|| Self { number: run_key * 2, middle: ids[(ids.len() - 1) / 2] })
    }

    /// Reads the messages to hand out together with this expired one. Only a poll hands out expired messages together.
    pub fn lost_with(message: &Record) -> Option<Stmt> {
        let batch = message.batch?;
        let (first, last) = if message.lapsed == 1 { (batch & !1, batch | 1) } else { (batch, batch) };
        Some(Stmt::read(
            unheld!(
                "where message.ready = 1 and message.batch >= ?1 and message.batch <= ?2 and message.lapsed > 0
                 order by message.priority desc, message.id /*pg for update of message skip locked*/"
            ),
            params![first, last],
        ))
    }
}

/// Writes claims on messages that are free and whose rows are locked.
pub(crate) async fn take(
    tx: &mut Tx<'_>,
    found: Vec<Record>,
    holder: &Holder,
    run_key: i64,
    max: Option<Millis>,
    halves: Option<Halves>,
) -> Result<Vec<ClaimedMessage>> {
    let mut taken = Vec::with_capacity(found.len());
    for message in found {
        let fence = next_fence(tx, message.fence);
        taken.push(claimed(message, holder.hold(run_key, fence, max, tx.now), tx.now));
    }
    let keys: Vec<i64> = taken.iter().map(|message| message.id).collect();
    let until = max.map(|max| tx.now.plus(max));
    let mut batch = Batch::new();
    let saved = batch.add(update(tx, &keys, run_key, until, halves));
    batch.add(event(tx, &keys, holder));
    tx.notes.delivered.extend(
        taken.iter().map(|message| Delivered { token: claim_token(message), delivery: message.delivery }),
    );
    let (answers, views) = full_after(tx, batch, taken).await?;
    if answers.affected(saved) < keys.len() as u64 {
        return Err(Error::raced(format!("run `{}` ended at this moment", holder.name)));
    }
    Ok(reply(views).claims)
}

/// The rule of a claim.
fn claimed(message: Record, hold: Hold, now: Time) -> Record {
    let (fence, attempts) = (hold.fence, message.attempts + 1);
    Record { phase: Phase::Processing(hold), attempts, fence, updated_at: now, ..message }
}

fn reply(views: Vec<Message>) -> Claimed {
    let claims = views
        .into_iter()
        .filter_map(|message| Some(ClaimedMessage { claim: message.claim.clone()?, message }));
    Claimed { claims: claims.collect() }
}

fn claim_token(message: &Record) -> crate::ids::Token {
    crate::ids::Token { resource: message.resource(), fence: message.fence }
}

pub(super) fn check_names(mailboxes: &[String]) -> Result<Vec<&str>> {
    check::range("mailboxes", mailboxes.len() as i64, 1, MAILBOXES_MAX as i64)?;
    mailboxes.iter().try_for_each(|name| check::path_name("mailboxes", name))?;
    Ok(mailboxes.iter().map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect())
}

/// All messages change in the same way, so one statement over their ids is enough. It computes the same fence as
/// [`next_fence`], because the rows are locked.
fn update(tx: &Tx<'_>, keys: &[i64], run_key: i64, until: Option<Time>, halves: Option<Halves>) -> Stmt {
    by_keys!(
        write,
        keys,
        "update message set status = 'processing', attempts = attempts + 1, run = ?2, until_at = ?5,
           fence = case when fence > ?3 then fence else ?3 end + 1, claimed_at = ?4, updated_at = ?4,
           batch = cast(?6 as bigint) + case when id > ?7 then 1 else 0 end
         where id",
        "and exists (select 1 from run where key = ?2 and ended_at is null and expires_at > ?4)",
        run_key,
        tx.opening.due.floor,
        tx.now,
        until,
        halves.map(|halves| halves.number),
        halves.map_or(0, |halves| halves.middle)
    )
}

fn event(tx: &Tx<'_>, keys: &[i64], holder: &Holder) -> Stmt {
    by_keys!(log,
        keys,
        "insert into event(at, kind, resource, from_state, to_state, run, agent, fence, request, topic, asked)
         select cast(?2 as bigint), 'message.claimed', 'message/' || id, 'pending', 'processing', cast(?3 as text),
           cast(?4 as text), fence, cast(?5 as text), '', cast(?6 as text) from message where id",
        "order by id",
        tx.now,
        &holder.name,
        holder.agent.as_deref().or(tx.caller.agent.as_deref()),
        tx.opening.request.as_deref(),
        tx.fingerprint()
    )
}

/// Runs the statement `before`, then reads and locks the next messages. They are the first entries of an index that
/// holds only ready messages: picking from a million costs the same as from a thousand.
pub(super) async fn pick(
    tx: &mut Tx<'_>,
    before: Stmt,
    names: &[&str],
    count: i64,
) -> Result<(Vec<Row>, Vec<Record>)> {
    tx.notes.subscriptions =
        vec![Subscription::new(("mail", names), names.iter().map(|name| Topic::mail(name)))];
    let mut batch = Batch::new();
    let before = batch.add(before);
    let heads = batch.add(heads(names)?);
    // With one mailbox there is no order of mailboxes to read first.
    let next = if let [name] = names { Some(batch.add(next_of(name, count))) } else { None };
    let mut answers = tx.send(batch).await?;
    let before = answers.take(before).rows;
    let (mut open, mut paused) = (Vec::new(), Vec::new());
    for row in answers.take(heads).rows {
        let name: String = row.get("name")?;
        match row.get::<Option<String>>("paused")? {
            Some(reason) => paused.push((name, reason)),
            None => open.push(name),
        }
    }
    let mut found = match next {
        Some(_) if open.is_empty() => Vec::new(),
        Some(next) => Record::read_all(answers.take(next).rows)?,
        None => of_several(tx, &open, count).await?,
    };
    if let Some(lapsed) = found.iter().position(|message| message.lapsed > 0) {
        found.truncate(lapsed.max(1));
    }
    let found = Record::that_fit(found);
    match (found.is_empty(), paused.first()) {
        (false, _) => Ok((before, found)),
        (true, Some((name, reason))) if paused.len() == names.len() => {
            Err(Error::new(Code::Paused, format!("mailbox `{name}` is paused: {reason}"))
                .with("mailbox", name)
                .hint(format!("fence mail resume {name} resumes it; --wait waits until it is resumed")))
        }
        _ => Err(nothing(tx, names).await?),
    }
}

pub(crate) fn next_of(mailbox: &str, count: i64) -> Stmt {
    Stmt::read(
        unheld!(
            "where message.ready = 1 and message.mailbox = ?2 order by message.priority desc, message.id limit ?1
             /*pg for update of message skip locked*/"
        ),
        params![count, mailbox],
    )
}

/// Reads the mailboxes one after the other until there are enough messages.
async fn of_several(tx: &mut Tx<'_>, mailboxes: &[String], count: i64) -> Result<Vec<Record>> {
    let mut found = Vec::new();
    for mailbox in mailboxes {
        let left = count - found.len() as i64;
        if left == 0 {
            break;
        }
        found.extend(Record::read_all(tx.one(next_of(mailbox, left)).await?.rows)?);
    }
    Ok(found)
}

/// Reads which mailboxes are paused. Of several, only those with a ready message or a pause, by their next message.
fn heads(names: &[&str]) -> Result<Stmt> {
    if let [name] = names {
        return Ok(Stmt::read("select name, paused from mailbox where name = ?1", params![*name]));
    }
    Ok(Stmt::read(
        "select name, paused, priority, head from (
           select name, paused,
             (select priority from message where ready = 1 and message.mailbox = mailbox.name
              order by priority desc, id limit 1) as priority,
             (select id from message where ready = 1 and message.mailbox = mailbox.name
              order by priority desc, id limit 1) as head
           from mailbox where name in (select value ->> 'name' from json_each(?1))) as heads
         where head is not null or paused is not null order by priority desc, head",
        params![set(names.iter().map(|name| serde_json::json!({ "name": name })))?],
    ))
}

/// The refusal, with counts that explain it. Counting stops at 1000, so that it costs no more than a claim.
async fn nothing(tx: &mut Tx<'_>, names: &[&str]) -> Result<Error> {
    let place =
        if let [name] = names { format!("mailbox `{name}`") } else { format!("{} mailboxes", names.len()) };
    let error = Error::new(Code::NoneReady, format!("nothing is ready in {place}"))
        .hint("fence mail claim --wait 1m waits for something to take");
    if tx.opening.probe_only {
        return Ok(error);
    }
    let rows = tx
        .query(
            "select
               (select count(*) from (select 1 from message where run is not null
                 and mailbox in (select value ->> 'name' from json_each(?1)) limit 1000) as t) as claimed,
               (select count(*) from (select 1 from message where ready = 0 and run is null and finished_at is null
                 and mailbox in (select value ->> 'name' from json_each(?1)) limit 1000) as t) as waiting,
               (select count(*) from (select 1 from message where status = 'failed'
                 and mailbox in (select value ->> 'name' from json_each(?1)) limit 1000) as t) as failed",
            params![set(names.iter().map(|name| serde_json::json!({ "name": name })))?],
        )
        .await?;
    let count = |name| rows[0].get::<i64>(name);
    Ok(error
        .with("claimed", count("claimed")?)
        .with("blocked", count("waiting")?)
        .with("failed", count("failed")?))
}

/// A repeated request: the messages that it claimed and that its run still holds.
async fn repeated(tx: &mut Tx<'_>) -> Result<Claimed> {
    let over = || {
        Error::new(Code::LeaseExpired, "the messages that this request claimed are no longer held")
            .hint("claim again with a new request id")
    };
    let taken = tx.opening.repeat.iter().filter(|did| did.kind == "message.claimed");
    let fences: std::collections::HashMap<i64, i64> = taken
        .filter_map(|did| Some((did.resource.strip_prefix("message/")?.parse().ok()?, did.fence?)))
        .collect();
    let keys: Vec<i64> = fences.keys().copied().collect();
    let rows = tx
        .one(by_keys!(read, keys.as_slice(), columns!("where message.id"), "order by message.id"))
        .await?
        .rows;
    let is_held = |hold: &Hold, id: i64| Some(&hold.fence) == fences.get(&id) && hold.is_alive(tx.now);
    let held: Vec<Record> = Record::read_all(rows)?
        .into_iter()
        .filter(|message| message.hold().is_some_and(|hold| is_held(hold, message.id)))
        .collect();
    if held.is_empty() {
        return Err(over());
    }
    let tokens: Vec<_> = held.iter().map(|message| (message.id, claim_token(message))).collect();
    tx.notes.delivered = redeliver(tx, &super::claimable::REDELIVERY, &tokens).await?;
    Ok(reply(full(tx, held).await?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        lease::Under,
        ops::{
            lock,
            mail::{self, record},
            testing::{on_both, rows, try_write, undo},
        },
    };

    #[tokio::test]
    async fn a_claim_writes_the_row_that_save_writes() {
        on_both(
            |tx| {
                Box::pin(async {
                    tx.call(lock::Claim::new("any", "r")).await?;
                    tx.call(mail::Push { key: Some("k".into()), ..mail::Push::new("box", "hello") }).await?;
                    let token = tx.call(Claim::next("box", "r")).await?.claims.remove(0).claim.token;
                    let (reason, delay_ms) = ("too early".into(), Some(Millis(0)));
                    tx.call(mail::Fail { token, reason, retry: true, delay_ms, ..Default::default() })
                        .await
                        .map(drop)
                })
            },
            |tx| {
                Box::pin(async {
                    let run_key = tx.query("select key from run", params![]).await?[0].get("key")?;
                    let id = tx.query("select id from message", params![]).await?[0].get("id")?;
                    let free = record::load(tx, id).await?.expect("a message");
                    let max = Millis::minutes(1);
                    try_write(tx).await?;
                    let claim = Claim { max_ms: Some(max), ..Claim::next("box", "r") };
                    assert_eq!(tx.call(claim).await?.claims.len(), 1);
                    let by_claim = rows(tx, "*", "message").await?;
                    undo(tx).await?;
                    assert_ne!(rows(tx, "*", "message").await?, by_claim);
                    let hold = Hold::sample("r", free.fence + 1, tx.now.plus(max));
                    let until = Some(tx.now.plus(max));
                    let hold = Hold { run_key, claimed_at: tx.now, until, ..hold };
                    let after = claimed(free.clone(), hold, tx.now);
                    record::save(tx, &[(free, after)], Under::NewClaim, Vec::new()).await?;
                    assert_eq!(rows(tx, "*", "message").await?, by_claim);
                    Ok(())
                })
            },
        )
        .await;
    }
}
