//! One call of a tool: the run that it acts for, and its ops.

use crate::{
    host::{Acting, Call, Host},
    meta,
};
use fencepost::{
    Code, Error, Op, Result,
    claim::{self, Claim},
    op::{self, AnyOp},
    run,
};
use serde_json::{Value, json};
use std::sync::Arc;

pub struct Session<'c> {
    host: &'c dyn Host,
    call: &'c Call,
    pub acting: Acting,
    request: String,
}

impl<'c> Session<'c> {
    pub fn new(host: &'c dyn Host, call: &'c Call) -> Result<Self> {
        let acting = host.acting(call)?;
        let request = meta::request(&call.meta, &acting.session, &acting.run);
        Ok(Self { host, call, acting, request })
    }

    /// For a call that only reads, and that no run has to answer for.
    pub fn reading(host: &'c dyn Host, call: &'c Call) -> Self {
        let acting = Acting { run: String::new(), session: String::new(), named: true };
        Self { host, call, acting, request: String::new() }
    }

    pub fn run(&self) -> String {
        self.acting.run.clone()
    }

    pub fn agent(&self) -> Option<String> {
        self.host.agent(self.call)
    }

    pub fn host(&self) -> &dyn Host {
        self.host
    }

    /// The id with which a repeated call gets its first reply.
    pub fn request(&self) -> Option<String> {
        Some(self.request.clone())
    }

    /// A new run below the session's, with the same name if the call is repeated.
    pub fn new_run(&self) -> Acting {
        // The longest name has 128 characters.
        let session: String = self.acting.session.chars().take(100).collect();
        let tail: String = self.request.chars().rev().take(12).collect();
        let run = self.call.run.clone().unwrap_or_else(|| format!("{session}-{tail}"));
        Acting { run, ..self.acting.clone() }
    }

    /// Tells the host that the call begins.
    pub async fn begin(&self) {
        self.host.begin(self.call, &self.acting).await;
    }

    pub async fn call<O: Op>(&self, op: O) -> Result<O::Reply> {
        op::typed(self.host.call(self.call, &self.acting, op.erase()).await?)
    }

    /// Calls an op, and returns its reply as JSON.
    pub async fn send<O: Op>(&self, op: O) -> Result<Value> {
        self.send_any(op.erase()).await
    }

    async fn send_any(&self, op: Arc<dyn AnyOp>) -> Result<Value> {
        let reply = self.host.call(self.call, &self.acting, op.clone()).await?;
        serde_json::from_slice(&op.encode_reply(&reply)?).map_err(|e| op::unreadable(&e, false))
    }

    /// Calls an op that ends a claim.
    pub async fn end<O: Op>(&self, op: O) -> Result<Value> {
        let reply = self.send(op).await;
        self.host.ended();
        reply
    }

    /// Tells the host that the agent knows of the claims that its session lost.
    pub async fn acknowledge(&self) -> Result<Value> {
        Ok(json!({ "acknowledged": self.host.acknowledged(self.call, &self.acting).await? }))
    }

    /// Tells the host of new claims, and the agent if nobody renews them.
    pub async fn claimed(&self, acting: &Acting, claims: &[Claim], mut reply: Value) -> Value {
        if let Some(warning) = self.host.claimed(self.call, acting, claims).await
            && let Some(reply) = reply.as_object_mut()
        {
            reply.insert("warning".into(), warning.into());
        }
        reply
    }

    /// The token to act under: the named one, else the claim that the client was started under, else the only one that the run
    /// holds.
    pub async fn token(&self, given: Option<String>) -> Result<String> {
        if let Some(given) = given {
            // A task that the run holds may be named instead of its token.
            if given.contains('@') {
                return Ok(given);
            }
            let resource = if given.contains('/') { given.clone() } else { format!("task/{given}") };
            let held = self.claims().await?.into_iter().find(|claim| claim.resource == resource);
            return Ok(held.map_or(given, |claim| claim.token));
        }
        match self.host.default_claim() {
            Some(token) => self.check_current(token).await,
            None => self.only_claim().await,
        }
    }

    /// Refuses a default claim that is over while the run holds something else: a repeated completion returns the first reply, so
    /// nobody would notice the mistake.
    async fn check_current(&self, token: String) -> Result<String> {
        if self.call(claim::Guard::new(&token)).await?.ok {
            return Ok(token);
        }
        match self.claims().await?.as_slice() {
            [] => Ok(token),
            others => {
                Err(named(Error::new(Code::LeaseExpired, format!("the claim `{token}` is over")), others))
            }
        }
    }

    async fn only_claim(&self) -> Result<String> {
        let run = self.run();
        match self.claims().await?.as_slice() {
            [claim] => Ok(claim.token.clone()),
            [] => {
                let list = run::List { run: Some(run.clone()), all: true, limit: Some(1) };
                let known = !self.call(list).await?.runs.is_empty();
                // A run that has lost its claims must stop. A run that never had one made a mistake.
                Err(match known {
                    true => Error::new(Code::LeaseExpired, format!("run `{run}` holds nothing any more")),
                    false => Error::new(Code::NotFound, format!("run `{run}` holds nothing, and never did"))
                        .hint("claim a task first"),
                })
            }
            several => {
                let message = format!("run `{run}` holds {} claims", several.len());
                Err(named(Error::new(Code::Invalid, message).with("field", "token"), several))
            }
        }
    }

    /// The claims of the run.
    pub async fn claims(&self) -> Result<Vec<Claim>> {
        Ok(self.call(claim::List { run: Some(self.run()), limit: None }).await?.claims)
    }
}

/// Adds the tokens to choose from.
fn named(error: Error, claims: &[Claim]) -> Error {
    let tokens: Vec<_> = claims.iter().map(|claim| claim.token.as_str()).collect();
    error.hint(format!("name one of your claims as token: {}", tokens.join(", "))).with("tokens", tokens)
}
