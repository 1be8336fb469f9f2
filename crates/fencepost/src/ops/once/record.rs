//! The row of an effect: reading, viewing, saving.

use super::{Effect, Output, Source, Status, claimable::NOUN, not_found};
use crate::{
    clock::Time,
    db::{Batch, Row, Slot, Stmt, Tx},
    error::{Error, Result},
    ids::Resource,
    lease::{ClaimState, Closed, Hold, Last},
    log::Event,
    params,
    topic::Topic,
};

#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub name: String,
    pub status: Status,
    /// The status before the latest claim.
    pub was: Status,
    pub command: String,
    pub digest: String,
    pub fence: i64,
    pub delivery: i64,
    pub hold: Option<Hold>,
    pub last: Option<Last>,
    pub begun_run: String,
    pub begun_agent: Option<String>,
    pub begun_at: Time,
    /// With a source, the exit code, the outputs and the note are those of the latest end.
    pub source: Option<Source>,
    pub exit_code: Option<i64>,
    pub note: Option<String>,
    pub reason: Option<String>,
    pub updated_at: Time,
}

/// The columns of [`Record`]. The outputs are read apart, because most callers do not need them.
macro_rules! columns {
    ($rest:literal) => {
        concat!(
            "select effect.name, effect.status, effect.was, effect.command, effect.command_digest, effect.fence,
               effect.delivery, effect.claimed_at, effect.until_at, effect.last_fence, effect.last_verb,
               effect.last_digest, effect.begun_run, effect.begun_agent, effect.begun_at, effect.source,
               effect.exit_code, effect.note, effect.reason, effect.updated_at, run.key as run_key,
               run.name as run_name, run.agent as run_agent, run.expires_at as run_expires_at,
               run.ended_at as run_ended_at
             from effect left join run on run.key = effect.run ",
            $rest
        )
    };
}
pub(crate) use columns;

impl Record {
    pub fn read(mut row: Row) -> Result<Self> {
        Ok(Self {
            name: row.get("name")?,
            status: Status::read(&row.get::<String>("status")?)?,
            was: Status::read(&row.get::<String>("was")?)?,
            command: row.take("command")?,
            digest: row.take("command_digest")?,
            fence: row.get("fence")?,
            delivery: row.get("delivery")?,
            begun_run: row.take("begun_run")?,
            begun_agent: row.take("begun_agent")?,
            begun_at: row.get("begun_at")?,
            source: row.take::<Option<String>>("source")?.map(|text| Source::read(&text)).transpose()?,
            exit_code: row.get("exit_code")?,
            note: row.take("note")?,
            reason: row.take("reason")?,
            updated_at: row.get("updated_at")?,
            hold: Hold::read(&mut row)?,
            last: Last::read(&mut row)?,
        })
    }

    pub fn read_all(rows: Vec<Row>) -> Result<Vec<Self>> {
        rows.into_iter().map(Self::read).collect()
    }

    pub fn resource(&self) -> Resource {
        Resource::new(NOUN, &self.name)
    }

    pub fn claim_state(&self) -> ClaimState {
        let closed = self.status.is_finished().then_some(Closed::Finished);
        ClaimState { fence: self.fence, hold: self.hold.clone(), closed, last: self.last.clone() }
    }

    /// The effect as expiry would write it now.
    pub fn now(self, now: Time) -> Self {
        match &self.hold {
            Some(hold) if hold.is_alive(now) => self,
            Some(hold) => {
                let reason = hold.lost(now).to_owned();
                self.doubt("lapse", reason, now)
            }
            None => self,
        }
    }

    /// The command was begun under the claim that ends now. Until then the row tells of the time before the claim.
    fn begun(self) -> Self {
        match self.hold.clone() {
            Some(hold) => {
                Self { begun_run: hold.run, begun_agent: hold.agent, begun_at: hold.claimed_at, ..self }
            }
            None => self,
        }
    }

    /// Ends the claim by this verb, with this status.
    fn end(&self, verb: &str, content: &[Option<&str>], status: Status, now: Time) -> Self {
        let last = self.hold.as_ref().map(|hold| Last::new(hold.fence, verb, content));
        Self { status, hold: None, last: last.or_else(|| self.last.clone()), updated_at: now, ..self.clone() }
    }

    /// The claim is lost: the command was begun, and nobody knows how it ended.
    pub fn doubt(&self, verb: &str, reason: String, now: Time) -> Self {
        Self {
            reason: Some(reason),
            source: None,
            exit_code: None,
            note: None,
            ..self.clone().begun().end(verb, &[], Status::InDoubt, now)
        }
    }

    /// The command was never started: the effect is as it was before the claim.
    pub fn restore(&self, verb: &str, now: Time) -> Self {
        self.end(verb, &[], self.was, now)
    }

    /// Somebody said how it ended.
    pub fn finish(&self, verb: &str, content: &[Option<&str>], result: Ended, now: Time) -> Self {
        let last = Last::new(self.fence, verb, content);
        let before = match result.source {
            Source::Command => self.clone().begun(),
            Source::Check | Source::Person => self.clone(),
        };
        Self {
            source: Some(result.source),
            exit_code: result.exit_code,
            note: result.note,
            reason: result.reason,
            last: Some(last),
            ..before.end(verb, content, result.status, now)
        }
    }

    /// For the tables of cases beside the rules.
    #[cfg(test)]
    pub fn sample(name: &str, status: Status, was: Status, fence: i64) -> Self {
        Self {
            name: name.into(),
            status,
            was,
            command: "./send".into(),
            digest: "d".into(),
            fence,
            delivery: 1,
            hold: None,
            last: None,
            begun_run: "r".into(),
            begun_agent: None,
            begun_at: Time(0),
            source: None,
            exit_code: None,
            note: None,
            reason: None,
            updated_at: Time(0),
        }
    }

    /// An event of this effect. `before` is the effect before the change.
    pub fn event(&self, kind: &'static str, before: &Record) -> Event {
        let hold = before.hold.as_ref().or(self.hold.as_ref());
        Event {
            run: hold.map(|hold| hold.run.clone()),
            agent: hold.and_then(|hold| hold.agent.clone()),
            fence: Some(self.fence),
            topic: Some(Topic::once(&self.name)),
            ..Event::new(kind, self.resource().to_string())
                .states(before.status.as_str(), self.status.as_str())
        }
    }

    pub fn view(self) -> Effect {
        let resource = self.resource();
        let ended = self.hold.is_none() && self.source.is_some();
        Effect {
            token: format!("{resource}@{}", self.fence),
            claim: self.hold.as_ref().map(|hold| hold.claim(&resource)),
            key: self.name,
            status: self.status,
            command: self.command,
            begun_by: self.begun_run,
            agent: self.begun_agent,
            begun_at: self.begun_at,
            source: self.source.filter(|_| ended),
            exit_code: self.exit_code.filter(|_| ended),
            stdout: None,
            stderr: None,
            note: self.note.filter(|_| ended),
            reason: self.reason.filter(|_| self.status == Status::InDoubt),
            updated_at: self.updated_at,
        }
    }

    /// Writes the row if it has not changed since it was read, and the run that it depends on is alive.
    pub fn save(&self, before: &Record, alive: Option<i64>, now: Time) -> Stmt {
        let hold = self.hold.as_ref();
        Stmt::write(
            "update effect set status = ?3, was = ?4, command = ?5, command_digest = ?6, run = ?7, fence = ?8,
               until_at = ?9, claimed_at = ?10, last_fence = ?11, last_verb = ?12, last_digest = ?13,
               begun_run = ?14, begun_agent = ?15, begun_at = ?16, source = ?17, exit_code = ?18, note = ?19,
               reason = ?20, updated_at = ?21
             where name = ?1 and fence = ?2
             and (cast(?22 as bigint) is null
               or exists (select 1 from run where key = ?22 and ended_at is null and expires_at > ?23))",
            params![
                &self.name,
                before.fence,
                self.status.as_str(),
                self.was.as_str(),
                &self.command,
                &self.digest,
                hold.map(|hold| hold.run_key),
                self.fence,
                hold.and_then(|hold| hold.until),
                hold.map(|hold| hold.claimed_at),
                self.last.as_ref().map(|last| last.fence),
                self.last.as_ref().map(|last| last.verb.as_str()),
                self.last.as_ref().map(|last| last.digest.as_str()),
                &self.begun_run,
                self.begun_agent.as_deref(),
                self.begun_at,
                self.source.map(Source::as_str),
                self.exit_code,
                self.note.as_deref(),
                self.reason.as_deref(),
                self.updated_at,
                alive,
                now,
            ],
        )
    }
}

/// How an effect ended, as somebody said it.
#[derive(Debug)]
pub(crate) struct Ended {
    pub status: Status,
    pub source: Source,
    pub exit_code: Option<i64>,
    pub note: Option<String>,
    pub reason: Option<String>,
}

pub(crate) const BY_NAME: &str = columns!("where effect.name = ?1");

pub(crate) async fn load(tx: &mut Tx<'_>, key: &str) -> Result<Option<Record>> {
    let rows = tx.query(BY_NAME, params![key]).await?;
    rows.into_iter().next().map(Record::read).transpose()
}

/// Locks the effect's row, then reads it.
pub(crate) fn add_locked(batch: &mut Batch, key: &str) -> Slot {
    batch.add(Stmt::lock("select 1 from effect where name = ?1 for update", params![key]));
    batch.add(Stmt::read(BY_NAME, params![key]))
}

pub(crate) async fn load_locked(tx: &mut Tx<'_>, key: &str) -> Result<Option<Record>> {
    let mut batch = Batch::new();
    let found = add_locked(&mut batch, key);
    let found = tx.send(batch).await?.take(found).rows;
    found.into_iter().next().map(Record::read).transpose()
}

/// The effect with its outputs, as it is now.
pub(crate) async fn show(tx: &mut Tx<'_>, key: &str) -> Result<Effect> {
    let mut batch = Batch::new();
    let found = batch.add(Stmt::read(BY_NAME, params![key]));
    let outputs = batch.add(Stmt::read("select stdout, stderr from effect where name = ?1", params![key]));
    let mut answers = tx.send(batch).await?;
    let found = answers.take(found).rows.into_iter().next().ok_or_else(|| not_found(key))?;
    let mut effect = Record::read(found)?.now(tx.now).view();
    let mut outputs = answers.take(outputs).rows;
    if let (Some(_), Some(row)) = (effect.source, outputs.first_mut()) {
        effect.stdout = Output::stored(row.take("stdout")?)?;
        effect.stderr = Output::stored(row.take("stderr")?)?;
    }
    Ok(effect)
}

/// Saves the end of an effect, with its outputs and its events. Returns false if the row or the run changed meanwhile.
pub(crate) async fn save_end(
    tx: &mut Tx<'_>,
    (before, after): (&Record, &Record),
    alive: Option<i64>,
    outputs: [Option<&Output>; 2],
    events: Vec<Event>,
) -> Result<bool> {
    let [stdout, stderr] = outputs.map(|output| output.map(Output::json).transpose());
    let mut batch = Batch::new();
    let written = batch.add(after.save(before, alive, tx.now));
    batch.add(Stmt::write(
        "update effect set stdout = ?2, stderr = ?3 where name = ?1",
        params![&after.name, stdout?, stderr?],
    ));
    batch.add(Event::insert_many(tx, events)?);
    Ok(tx.send(batch).await?.affected(written) == 1)
}

/// The key's row changed at this moment.
pub(crate) fn raced(key: &str) -> Error {
    Error::raced(format!("effect `{key}` or its run changed at this moment"))
}
