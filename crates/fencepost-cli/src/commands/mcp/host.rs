//! The client behind standard input: the run that it acts for, and who renews that run.

use crate::{
    context::{Context, unless},
    environment::variable,
    identity::{self, Identity, Reason},
    names::unique,
    session::{self, Lost, Sessions},
};
use fencepost::{
    BoxFuture, Clock, Code, Error, Millis, Result,
    claim::Claim,
    op::{AnyOp, AnyReply},
    run,
    sync::lock,
};
use fencepost_client::Connection;
use fencepost_mcp::{Acting, Call, Host, session_run};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};
use tokio::sync::{OnceCell, mpsc, oneshot};

/// A question to the task that has the context.
#[derive(Debug)]
pub enum Ask {
    /// Open the fleet, and tell its address.
    Open(oneshot::Sender<Result<(Connection, String)>>),
    /// Start a keeper for the run of this claim.
    Keep { claim: Claim, named: bool, record: String, reply: oneshot::Sender<Result<()>> },
    /// The hooks of the session with this record look after these claims.
    Remember { record: String, claims: Vec<Claim> },
    /// The session with this record knows what it lost.
    Acknowledge { record: String, reply: oneshot::Sender<Result<Vec<Lost>>> },
    /// A claim ended, and perhaps nothing is left to keep.
    WakeKeepers,
}

/// The run of a client, as far as it is known before a call.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    /// The run that the user, or the client's session variable, names.
    first: Option<Acting>,
    /// The run of calls that name no session.
    last: Acting,
    /// The client works for `fence work` under one claim, and no other run is opened.
    bound: bool,
}

impl Known {
    /// `connection`: the run of this connection, for a client that tells no session.
    fn of(identity: &Identity, claim: Option<&str>, connection: &str) -> Self {
        let acting = |run: &str, named| Acting { run: run.into(), session: run.into(), named };
        let own = acting(&identity.run, matches!(identity.reason, Reason::Flag | Reason::Variable));
        let (first, last) = match identity.reason {
            Reason::Flag | Reason::Variable | Reason::Agent(_) => (Some(own.clone()), own),
            // A client that tells its session with each call knows better than the record of its process.
            Reason::Recorded => (None, own),
            // A terminal is no session of an agent: two clients in it must not share a run.
            Reason::Session | Reason::Orphan => (None, acting(connection, false)),
        };
        let bound = identity.reason == Reason::Variable && claim.is_some();
        Self { first, last, bound }
    }

    /// The rule.
    fn acting(&self, argument: Option<&str>, by_call: Option<String>) -> Result<Acting> {
        let by_call = || by_call.map(|run| Acting { session: run.clone(), run, named: false });
        let found = self.first.clone().or_else(by_call).unwrap_or_else(|| self.last.clone());
        match argument {
            None => Ok(found),
            Some(argument) if argument == found.run => Ok(found),
            Some(_) if self.bound => {
                let message = format!("must be left out: you were started for run `{}`", found.run);
                Err(Error::invalid("run", message))
            }
            Some(argument) => Ok(Acting { run: argument.into(), named: true, ..found }),
        }
    }
}

#[derive(Debug)]
pub struct Stdio {
    /// The run that `--run` names.
    flag: Option<String>,
    /// The run of this connection.
    run: String,
    /// The client's process runs several sessions and outlives them, so that it is no sign of life.
    is_shared: bool,
    agent: Option<String>,
    claim: Option<String>,
    lease: Millis,
    connection: Arc<fencepost_mcp::Connection>,
    fleet: OnceCell<(Connection, String)>,
    ask: mpsc::UnboundedSender<Ask>,
    /// Runs that this process renews, because no keeper could be started.
    renewed: Mutex<HashSet<String>>,
}

impl Stdio {
    pub fn new(
        context: &Context,
        connection: Arc<fencepost_mcp::Connection>,
        ask: mpsc::UnboundedSender<Ask>,
        lease: Millis,
    ) -> Self {
        let claim = variable("FENCE_CLAIM");
        Self {
            flag: context.named_run(),
            run: unique("mcp-"),
            is_shared: identity::client().is_some_and(|client| client.is_shared()),
            agent: context.agent(),
            claim,
            lease,
            connection,
            fleet: OnceCell::new(),
            ask,
            renewed: Mutex::default(),
        }
    }

    /// The fleet. It may not exist yet when the client starts, so an error is not kept.
    async fn opened(&self) -> Result<&(Connection, String)> {
        self.fleet.get_or_try_init(|| async { self.asked(Ask::Open).await?.map_err(missing) }).await
    }

    async fn fleet(&self) -> Result<&Connection> {
        Ok(&self.opened().await?.0)
    }

    async fn asked<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> Ask) -> Result<T> {
        let gone = || Error::unavailable("the server is stopping");
        let (reply, answer) = oneshot::channel();
        self.ask.send(question(reply)).map_err(|_| gone())?;
        answer.await.map_err(|_| gone())
    }

    /// Renews a run while this process lives and the run does.
    fn renew(&self, run: &str, fleet: Connection) {
        if !lock(&self.renewed).insert(run.to_owned()) {
            return;
        }
        let (run, pause) = (run.to_owned(), Millis(self.lease.0 / 3));
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(pause.into()).await;
                match fleet.call(run::Renew { run: run.clone(), ttl_ms: None }).await {
                    Err(e) if !e.is_transient() => return,
                    _ => {}
                }
            }
        });
    }
}

/// An agent does not create fleets: it asks.
fn missing(error: Error) -> Error {
    match error.code() {
        Code::NotFound => Error::unavailable(error.message())
            .hint("ask the person to create it with the command line (init), or to name another in this server's settings"),
        _ => error,
    }
}

impl Host for Stdio {
    fn acting(&self, call: &Call) -> Result<Acting> {
        // Decided for each call: the client may begin a new session, and its hook records that.
        let identity = identity::identify_server(self.flag.clone(), variable(identity::RUN));
        let known = Known::of(&identity, self.claim.as_deref(), &self.run);
        known.acting(call.run.as_deref(), session_run(&call.client, &call.meta))
    }

    fn begin<'h>(&'h self, _: &'h Call, acting: &'h Acting) -> BoxFuture<'h, ()> {
        Box::pin(async move {
            // Else a keeper renews the run.
            if self.is_shared
                && let Ok(fleet) = self.fleet().await
            {
                // A run that has not begun is refused.
                let _ = fleet.call(run::Renew { run: acting.run.clone(), ttl_ms: None }).await;
            }
        })
    }

    fn call<'h>(
        &'h self,
        _: &'h Call,
        acting: &'h Acting,
        op: Arc<dyn AnyOp>,
    ) -> BoxFuture<'h, Result<AnyReply>> {
        Box::pin(async move {
            let (fleet, address) = self.opened().await?;
            let fleet = if acting.run.is_empty() { fleet.clone() } else { fleet.in_run(&acting.run) };
            if session::ends(op.name()) {
                // Recorded before the reply, after which the client's hooks look.
                let runs = identity::with_session(&record(acting));
                let sessions = Sessions { runs: &runs, fleet: &fleet, address };
                let texts = |reply: &AnyReply| session::of_call(op.as_ref(), reply);
                let call = fleet.call_any(op.clone());
                return sessions.call(op.name(), call, texts, Clock::System.read()).await;
            }
            if op.wait().is_none() {
                return fleet.call_any(op).await;
            }
            // A claim for a client that is gone would be nobody's.
            let answer = unless(self.connection.closed(), fleet.call_any(op)).await;
            answer.unwrap_or_else(|| Err(Error::unavailable("the client closed the connection")))
        })
    }

    fn agent(&self, _: &Call) -> Option<String> {
        self.agent.clone()
    }

    fn default_claim(&self) -> Option<String> {
        self.claim.clone()
    }

    fn lease(&self) -> Millis {
        if self.is_shared { self.lease.max(run::SHELL_TTL) } else { self.lease }
    }

    fn claimed<'h>(
        &'h self,
        call: &'h Call,
        acting: &'h Acting,
        claims: &'h [Claim],
    ) -> BoxFuture<'h, Option<String>> {
        self.connection.claimed(&call.id, claims.iter().map(|claim| claim.token.clone()));
        let _ = self.ask.send(Ask::Remember { record: record(acting), claims: claims.to_vec() });
        Box::pin(async move {
            let claim = claims.first()?.clone();
            if self.is_shared {
                return Some(format!(
                    "nobody renews this claim while you call nothing: each call of these tools does, for {}",
                    self.lease()
                ));
            }
            let (run, named) = (claim.run.clone(), acting.named);
            let kept = self.asked(|reply| Ask::Keep { claim, named, record: record(acting), reply }).await;
            let problem = kept.and_then(|kept| kept).err()?;
            self.renew(&run, self.fleet().await.ok()?.clone());
            Some(format!("{}; the claim is renewed only while this MCP server runs", problem.message()))
        })
    }

    fn acknowledged<'h>(&'h self, _: &'h Call, acting: &'h Acting) -> BoxFuture<'h, Result<Vec<String>>> {
        Box::pin(async move {
            let lost = self.asked(|reply| Ask::Acknowledge { record: record(acting), reply }).await??;
            Ok(lost.into_iter().map(|lost| lost.token).collect())
        })
    }

    fn ended(&self) {
        let _ = self.ask.send(Ask::WakeKeepers);
    }
}

/// The run in whose record the claims of this call are remembered: a subagent stands for itself.
fn record(acting: &Acting) -> String {
    let is_subagent = identity::with_session(&acting.run).contains(&acting.session);
    if is_subagent { acting.run.clone() } else { acting.session.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(reason: Reason, claim: Option<&str>) -> Known {
        Known::of(&Identity { run: "own".into(), reason, owner: None }, claim, &unique("mcp-"))
    }

    #[test]
    fn whose_run() {
        let agent = || Reason::Agent("CLAUDE_CODE_SESSION_ID");
        let cases = [
            ("FENCE_RUN", known(Reason::Variable, None), None, Some("s"), "own"),
            ("--run", known(Reason::Flag, None), None, Some("s"), "own"),
            ("its session", known(agent(), None), None, Some("s"), "own"),
            ("the call's session", known(Reason::Session, None), None, Some("codex-s"), "codex-s"),
            (
                "the call's session, not the record",
                known(Reason::Recorded, None),
                None,
                Some("codex-s"),
                "codex-s",
            ),
            ("the record", known(Reason::Recorded, None), None, None, "own"),
            ("an argument", known(agent(), None), Some("sub"), Some("s"), "sub"),
            ("an argument and a named run", known(Reason::Variable, None), Some("sub"), None, "sub"),
            (
                "the same argument in fence work",
                known(Reason::Variable, Some("t@1")),
                Some("own"),
                None,
                "own",
            ),
        ];
        for (what, known, argument, session, run) in cases {
            let acting = known.acting(argument, session.map(str::to_owned)).expect(what);
            assert_eq!(acting.run, run, "{what}");
        }
        let bound = known(Reason::Variable, Some("task/a-1@1"));
        assert!(bound.acting(Some("sub"), None).is_err(), "no other run is opened in fence work");
        let (one, other) = (known(Reason::Session, None), known(Reason::Session, None));
        let run = |known: &Known| known.acting(None, None).expect("a run").run;
        assert_eq!(run(&one), run(&one));
        assert_ne!(run(&one), run(&other), "two connections are two runs");
    }
}
