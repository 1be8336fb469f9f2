use super::{
    Effect, Status,
    record::{self, BY_NAME, Record, add_locked, raced},
};
use crate::{
    caller::Access,
    clock::{Millis, Time},
    db::{Answers, Batch, Delivered, Slot, Stmt, Subscription, Tx},
    engine::{
        op::{OnRetry, Op, erased, refuses},
        prelude::Prelude,
    },
    error::{Code, Error, Result},
    ids::{Owner, Resource, Token},
    lease::{
        self,
        hold::{next_fence, require, write_logged},
        run::{self, Holder},
    },
    limits::{NAME_MAX, TEXT_MAX, check},
    log::{Event, access},
    ops::nouns,
    params,
    topic::Topic,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Begin an effect that must happen once. The reply is a claim, under which the caller runs the command and then calls
/// `once/finish`, or the result of an earlier call, and then the caller runs nothing. If the caller dies, or its claim is
/// lost in any other way, the effect is in doubt: it counts as neither done nor undone, and is not run again by itself.
/// Release the claim (`claim/release`) only if the command was never started.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Begin {
    /// Such as `slack-812`
    pub key: String,
    /// The command, for people. It is kept with the result, so leave secrets out.
    pub command: String,
    /// Tells commands apart: the same key with another digest is refused. Default: a digest of `command`.
    #[serde(default)]
    pub digest: Option<String>,
    /// The run that will hold the claim. It is opened if it does not exist.
    pub run: String,
    #[serde(default)]
    pub agent: Option<String>,
    /// Lease: the effect is in doubt if this run is not renewed for this long (default 30 min).
    #[serde(default)]
    pub ttl_ms: Option<Millis>,
    /// The longest that this claim may last, even if it is renewed.
    #[serde(default)]
    pub max_ms: Option<Millis>,
    /// If the command failed before, run it again.
    #[serde(default)]
    pub retry_failed: bool,
    /// If the effect is in doubt, claim it: to run the command again, or to find out first (`once/resolve`).
    #[serde(default)]
    pub retry_in_doubt: bool,
    /// The token of the caller's own claim. If that claim was lost, the effect is not begun.
    #[serde(default)]
    pub under: Option<String>,
    /// If another run holds the effect, wait up to this long (at most 10 minutes; repeat the call to wait longer).
    #[serde(default)]
    pub wait_ms: Option<Millis>,
    /// Request id: repeating the call with the same id returns the first reply.
    #[serde(default)]
    pub request: Option<String>,
}

impl Begin {
    pub fn new(key: impl Into<String>, command: impl Into<String>, run: impl Into<String>) -> Self {
        Self { key: key.into(), command: command.into(), run: run.into(), ..Self::default() }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Begun {
    /// Run the command under this claim. Missing: the effect has a result, and nothing is to be run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<lease::Claim>,
    /// With a claim: the status before it, which is `unused`, `failed` or `in_doubt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<Status>,
    pub effect: Effect,
}

impl Begun {
    /// The token of the claim.
    #[cfg(test)]
    pub(crate) fn token(self) -> Result<String> {
        self.claim.map(|claim| claim.token).ok_or_else(|| Error::internal("the effect has a result"))
    }
}

impl Op for Begin {
    const NAME: &'static str = "once/begin";
    const ACCESS: Access = Access::Agent;
    const ON_RETRY: OnRetry = OnRetry::ByRequestId;
    const EXAMPLE: &'static str = r#"{"key":"slack-812","command":"./send-to-slack","run":"r-1"}"#;
    refuses![AlreadyClaimed, NotReady, LeaseExpired, AlreadyFinished, Cancelled];
    type Reply = Begun;
    erased!();

    fn prelude(&self) -> Prelude {
        // `run` refuses a malformed key.
        let is_key = check::path_name("key", &self.key).is_ok();
        let reads = if is_key { self.opening().0 } else { Batch::new() };
        let prelude = Prelude::claims(&self.run, self.ttl_ms).once(self.request.as_deref());
        prelude.reading(reads.into_statements())
    }

    fn wait(&self) -> Option<Millis> {
        self.wait_ms
    }

    /// Only a holder is waited for: a doubt does not pass by itself.
    fn not_yet(answer: Result<&Begun, &Error>) -> bool {
        answer.is_err_and(|e| e.is_not_yet() && e.code() == Code::AlreadyClaimed)
    }

    async fn run(self, tx: &mut Tx<'_>) -> Result<Begun> {
        check::path_name("key", &self.key)?;
        tx.caller.may_use_name(&format!("effect `{}`", self.key), Owner::of_name(&self.key))?;
        check::line("command", &self.command, TEXT_MAX)?;
        self.digest.as_ref().map_or(Ok(()), |digest| check::line("digest", digest, NAME_MAX))?;
        run::check_name(&self.run)?;
        check::optional_name("agent", self.agent.as_deref())?;
        check::lease("ttl_ms", self.ttl_ms)?;
        check::lease("max_ms", self.max_ms)?;
        check::request(self.request.as_deref())?;

        let resource = Resource::new(super::claimable::NOUN, &self.key);
        if tx.opening.is_repeat_by(Some(&self.run), "once.claimed", Some(&resource))? {
            return self.repeated(tx).await;
        }
        self.check_caller(tx).await?;
        // Most callers come after the end: they get the result, and no run is opened for them.
        let (_, first) = self.opening();
        let first = Answers::new(std::mem::take(&mut tx.opening.read)).take(first).rows;
        let first = first.into_iter().next().map(Record::read).transpose()?;
        if first.is_some() && self.decide(first.as_ref(), tx.now) == Ok(Next::Stored) {
            return self.stored(tx).await;
        }
        let holder = Holder::of(tx, &self.run, self.agent.as_deref(), self.ttl_ms)?;
        let mut batch = Batch::new();
        let entered = batch.add(holder.enter(tx.now));
        let found = add_locked(&mut batch, &self.key);
        let mut answers = tx.send(batch).await?;
        let run_key = holder.key(&answers.take(entered).rows)?;
        let found = answers.take(found).rows.into_iter().next().map(Record::read).transpose()?;
        match (self.decide(found.as_ref(), tx.now), found) {
            (Ok(Next::Claim), Some(found)) => self.take(tx, found, &holder, run_key).await,
            (Ok(Next::Claim), None) => self.first_claim(tx, &holder, run_key).await,
            (Ok(Next::Stored), _) => {
                // It ended at this moment.
                if holder.is_new() {
                    tx.execute("delete from run where key = ?1", params![run_key]).await?;
                }
                self.stored(tx).await
            }
            (Err(refused), _) => {
                let subscription = Subscription::new(("once", &self.key), [Topic::once(&self.key)]);
                tx.notes.subscriptions = vec![subscription];
                Err(refused)
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Claim,
    /// The effect has a result, and the caller runs nothing.
    Stored,
}

/// The beginning of a command, in one line.
fn brief(command: &str) -> String {
    const SHOWN: usize = 60;
    let escaped = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    let rest = if command.chars().nth(SHOWN).is_some() { "…" } else { "" };
    command.chars().take(SHOWN).map(escaped).collect::<String>() + rest
}

impl Begin {
    /// The first statement of the call's transaction: reads the effect.
    fn opening(&self) -> (Batch, Slot) {
        let mut batch = Batch::new();
        let found = batch.add(Stmt::read(BY_NAME, params![&self.key]));
        (batch, found)
    }

    fn digest(&self) -> String {
        self.digest.clone().unwrap_or_else(|| access::digest(&self.command))
    }

    /// The rule.
    fn decide(&self, found: Option<&Record>, now: Time) -> Result<Next> {
        let Some(found) = found else { return Ok(Next::Claim) };
        let effect = found.clone().now(now);
        if effect.status != Status::Unused && effect.digest != self.digest() {
            return Err(self.another_command(&effect));
        }
        match (effect.status, &effect.hold) {
            (Status::Unused, _) => Ok(Next::Claim),
            (Status::Succeeded, _) => Ok(Next::Stored),
            (Status::Failed, _) if self.retry_failed => Ok(Next::Claim),
            (Status::Failed, _) => Ok(Next::Stored),
            (Status::Running, Some(hold)) => {
                let own = hold.run == self.run;
                let message = format!("effect `{}` is being run by {}", self.key, hold.describe());
                Err(Error::new(Code::AlreadyClaimed, message)
                    .with("holder", &hold.run)
                    .with("own", own)
                    .with("fence", hold.fence)
                    .with("expires_at", hold.expires_at())
                    .hint(format!("fence once {} --wait -- … waits for its result", self.key)))
            }
            (Status::InDoubt, _) if self.retry_in_doubt => Ok(Next::Claim),
            (Status::InDoubt | Status::Running, _) => Err(self.in_doubt(&effect)),
        }
    }

    fn another_command(&self, effect: &Record) -> Error {
        let (key, command) = (&self.key, brief(&effect.command));
        let message = format!("effect `{key}` belongs to another command: `{command}`");
        Error::new(Code::Invalid, message)
            .with("field", "command")
            .with("status", effect.status)
            .hint("give another effect a key of its own")
    }

    fn in_doubt(&self, effect: &Record) -> Error {
        let key = &self.key;
        let reason = effect.reason.as_deref().unwrap_or("its claim was lost");
        let message = format!(
            "effect `{key}` is in doubt: run `{}` began it at {}, and {reason}",
            effect.begun_run, effect.begun_at
        );
        Error::new(Code::NotReady, message)
            .with("status", Status::InDoubt)
            .with("token", format!("{}@{}", effect.resource(), effect.fence))
            .with("reason", reason)
            .hint(format!(
                "find out whether it happened, then: fence once {key} --happened or --not-happened; \
                 --check CMD finds out by a command; --retry-in-doubt runs it again"
            ))
    }

    /// Refuses a caller whose own claim was lost. A claim that its holder finished itself is no loss.
    async fn check_caller(&self, tx: &mut Tx<'_>) -> Result<()> {
        let Some(under) = &self.under else { return Ok(()) };
        let token = Token::check(under).map_err(|e| e.with("field", "under"))?;
        let state = nouns().of(&token.resource)?.claim_state(tx, token.resource.id()).await?;
        let last = state.as_ref().and_then(|state| state.last.as_ref());
        let finished = last.filter(|last| last.fence == token.fence).map(|last| last.verb.as_str());
        if matches!(finished, Some("done" | "fail")) {
            return Ok(());
        }
        match require(state.as_ref(), &token, tx.now) {
            Ok(_) => Ok(()),
            // The caller has the token of a claim that is gone with its item.
            Err(e) if e.code() == Code::NotFound => {
                let message = format!("effect `{}` was not begun: {}", self.key, e.message());
                Err(Error::new(Code::LeaseExpired, message)
                    .hint("the caller's claim (FENCE_CLAIM) is not one of this fleet"))
            }
            Err(e) => Err(e),
        }
    }

    async fn take(self, tx: &mut Tx<'_>, found: Record, holder: &Holder, run_key: i64) -> Result<Begun> {
        let before = found.clone().now(tx.now);
        let mut events = Vec::new();
        if found.hold.is_some() {
            events.push(before.event("once.lapsed", &found).because(before.reason.as_deref()));
        }
        let fence = next_fence(tx, found.fence);
        let hold = holder.hold(run_key, fence, self.max_ms, tx.now);
        let mut taken = Record {
            status: Status::Running,
            was: before.status,
            fence,
            hold: Some(hold),
            updated_at: tx.now,
            ..before.clone()
        };
        if before.status == Status::Unused {
            (taken.command, taken.digest) = (self.command.clone(), self.digest());
            (taken.begun_run, taken.begun_agent) = (holder.name.clone(), holder.agent.clone());
            taken.begun_at = tx.now;
        }
        events.push(self.claimed(&taken, &before));
        let events = Event::insert_many(tx, events)?;
        let written = write_logged(tx, taken.save(&found, Some(run_key), tx.now), events).await?;
        self.reply(tx, taken, written)
    }

    /// The row is new, so its fence starts above the floor: an earlier row of this key may have been removed.
    async fn first_claim(self, tx: &mut Tx<'_>, holder: &Holder, run_key: i64) -> Result<Begun> {
        let floor = tx.query("select floor from fleet /*pg for share*/", params![]).await?;
        let fence = floor[0].get::<i64>("floor")? + 1;
        let hold = holder.hold(run_key, fence, self.max_ms, tx.now);
        let insert = Stmt::write(
            "insert into effect(name, status, was, command, command_digest, run, fence, until_at, claimed_at, begun_run,
               begun_agent, begun_at, created_at, updated_at)
             select ?1, 'running', 'unused', ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?7, ?7, ?7
             where exists (select 1 from run where key = ?4 and ended_at is null and expires_at > ?7)
             on conflict (name) do nothing",
            params![
                &self.key,
                &self.command,
                self.digest(),
                run_key,
                fence,
                hold.until,
                tx.now,
                &holder.name,
                holder.agent.as_deref()
            ],
        );
        let unused = Record {
            name: self.key.clone(),
            status: Status::Unused,
            was: Status::Unused,
            command: self.command.clone(),
            digest: self.digest(),
            fence,
            delivery: 1,
            hold: None,
            last: None,
            begun_run: holder.name.clone(),
            begun_agent: holder.agent.clone(),
            begun_at: tx.now,
            source: None,
            exit_code: None,
            note: None,
            reason: None,
            updated_at: tx.now,
        };
        let taken = Record { status: Status::Running, hold: Some(hold), ..unused.clone() };
        let event = self.claimed(&taken, &unused).insert(tx);
        let written = write_logged(tx, insert, event).await?;
        self.reply(tx, taken, written)
    }

    fn claimed(&self, taken: &Record, before: &Record) -> Event {
        taken.event("once.claimed", before).details(serde_json::json!({ "command": brief(&self.command) }))
    }

    fn reply(&self, tx: &mut Tx<'_>, taken: Record, written: u64) -> Result<Begun> {
        match &taken.hold {
            Some(hold) if written == 1 => {
                let resource = taken.resource();
                let token = hold.token(&resource);
                tx.notes.delivered = vec![Delivered { token, delivery: taken.delivery }];
                Ok(Begun { claim: Some(hold.claim(&resource)), was: Some(taken.was), effect: taken.view() })
            }
            _ => Err(raced(&self.key)),
        }
    }

    async fn stored(&self, tx: &mut Tx<'_>) -> Result<Begun> {
        Ok(Begun { claim: None, was: None, effect: record::show(tx, &self.key).await? })
    }

    /// The reply to a repeated request: its claim while it lasts, and then its result.
    async fn repeated(&self, tx: &mut Tx<'_>) -> Result<Begun> {
        let claimed = tx.opening.repeat.iter().find(|did| did.kind == "once.claimed");
        let fence = claimed.and_then(|did| did.fence);
        let found = record::load_locked(tx, &self.key).await?.filter(|effect| Some(effect.fence) == fence);
        let over = || {
            Error::new(Code::LeaseExpired, "this request no longer holds the effect")
                .hint("begin again with a new request id")
        };
        let effect = found.ok_or_else(over)?.now(tx.now);
        let Some(hold) = effect.hold.clone() else {
            return if effect.status.is_finished() { self.stored(tx).await } else { Err(over()) };
        };
        let raised = tx
            .execute_returning(
                "update effect set delivery = delivery + 1 where name = ?1 and fence = ?2 and run is not null
                 returning delivery",
                params![&self.key, hold.fence],
            )
            .await?;
        let delivery = raised.first().ok_or_else(|| raced(&self.key))?.get("delivery")?;
        self.reply(tx, Record { delivery, ..effect }, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Hold;

    #[test]
    fn who_runs_it_who_gets_the_result_and_who_is_refused() {
        use Status::*;
        let begin = Begin { digest: Some("d".into()), ..Begin::new("mail", "./send", "me") };
        let retry_failed = Begin { retry_failed: true, ..begin.clone() };
        let retry_in_doubt = Begin { retry_in_doubt: true, ..begin.clone() };
        let other =
            Begin { digest: Some("e".into()), retry_failed: true, retry_in_doubt: true, ..begin.clone() };
        let effect = |status| Some(Record::sample("mail", status, Unused, 3));
        let held = |expires_at| {
            let hold = Some(Hold::sample("r", 3, Time(expires_at)));
            Some(Record { hold, ..Record::sample("mail", Running, Unused, 3) })
        };
        let (claim, stored) = (Ok(Next::Claim), Ok(Next::Stored));
        let refused = Err;
        for (found, asked, says) in [
            (None, &begin, claim),
            (effect(Unused), &begin, Ok(Next::Claim)),
            (effect(Unused), &other, Ok(Next::Claim)),
            (effect(Succeeded), &begin, stored),
            (effect(Succeeded), &retry_failed, Ok(Next::Stored)),
            (effect(Succeeded), &other, refused(Code::Invalid)),
            (effect(Failed), &begin, Ok(Next::Stored)),
            (effect(Failed), &retry_in_doubt, Ok(Next::Stored)),
            (effect(Failed), &retry_failed, Ok(Next::Claim)),
            (effect(Failed), &other, refused(Code::Invalid)),
            (effect(InDoubt), &begin, refused(Code::NotReady)),
            (effect(InDoubt), &retry_failed, refused(Code::NotReady)),
            (effect(InDoubt), &retry_in_doubt, Ok(Next::Claim)),
            (effect(InDoubt), &other, refused(Code::Invalid)),
            (held(9), &retry_in_doubt, refused(Code::AlreadyClaimed)),
            (held(5), &begin, refused(Code::NotReady)),
            (held(5), &retry_failed, refused(Code::NotReady)),
            (held(5), &retry_in_doubt, Ok(Next::Claim)),
        ] {
            let decided = asked.decide(found.as_ref(), Time(5)).map_err(|e| e.code());
            assert_eq!(decided, says, "{:?} {asked:?}", found.map(|effect| effect.status));
        }
    }
}
