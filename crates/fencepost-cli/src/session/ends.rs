//! The claims of a session that an op ends. The fleet keeps only the last end of an item, so a session records what it ended itself. It must
//! never record a claim that it lost before: then nothing would stop it.

use super::file;
use fencepost::{
    Error, Result, Time, claim,
    op::{AnyOp, AnyReply},
};
use fencepost_client::Connection;
use serde_json::Value;

/// Ops that name claims by their tokens. They are refused if a claim is over.
const BY_TOKEN: [&str; 11] = [
    "claim/release",
    "loop/verdict",
    "mail/done",
    "mail/done_many",
    "mail/fail",
    "mail/release",
    "task/accept",
    "task/done",
    "task/done_many",
    "task/fail",
    "task/reject",
];

/// Ops that end the claims of an item, a run or a board, dead ones among them.
const OTHERS: [&str; 8] = [
    "claim/unclaim",
    "inbox/respond",
    "loop/cancel",
    "loop/restart",
    "mail/reset",
    "run/end",
    "run/settle",
    "task/cancel",
];

/// Does the op end claims?
pub fn ends(op: &str) -> bool {
    BY_TOKEN.contains(&op) || OTHERS.contains(&op)
}

/// Some sessions and a fleet of theirs.
#[derive(Debug, Clone, Copy)]
pub struct Sessions<'a> {
    pub runs: &'a [String],
    pub fleet: &'a Connection,
    /// The address of the fleet.
    pub address: &'a str,
}

impl Sessions<'_> {
    /// Calls an op, and records which claims of the sessions it ended. `texts`: its request and reply.
    pub async fn call<T>(
        &self,
        op: &str,
        call: impl Future<Output = Result<T>>,
        texts: impl FnOnce(&T) -> Result<(Value, Value)>,
        now: Time,
    ) -> Result<T> {
        let alive = if OTHERS.contains(&op) { self.alive().await } else { Vec::new() };
        let reply = call.await?;
        // Without the texts the hooks ask the fleet.
        if let Ok((request, answer)) = texts(&reply) {
            let mut ended = if BY_TOKEN.contains(&op) { named(&request, &answer) } else { Vec::new() };
            for token in alive {
                if !self.lives(&token).await.unwrap_or(true) {
                    ended.push(token);
                }
            }
            let verb = op.split_once('/').map_or(op, |(_, verb)| verb);
            let verb = if op == "run/settle" { request["outcome"].as_str().unwrap_or(verb) } else { verb };
            self.runs.iter().for_each(|run| file::ended(run, self.address, &ended, verb, now));
        }
        Ok(reply)
    }

    /// The claims of the sessions that are alive.
    async fn alive(&self) -> Vec<String> {
        let mut alive = Vec::new();
        for token in self.runs.iter().flat_map(|run| file::read(run).may_hold_in(self.address)) {
            if !alive.contains(&token) && self.lives(&token).await.unwrap_or(false) {
                alive.push(token);
            }
        }
        alive
    }

    async fn lives(&self, token: &str) -> Result<bool> {
        Ok(self.fleet.call(claim::Guard::new(token)).await?.ok)
    }
}

/// The tokens of a request: one, several, or those of a batch that were accepted.
fn named(request: &Value, reply: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let accepted = list(&reply["results"]).into_iter().filter(|result| result["error"].is_null());
    let of_batch = accepted.map(|result| result["token"].clone());
    let all = [request["token"].clone()].into_iter().chain(list(&request["tokens"])).chain(of_batch);
    all.filter_map(|token| token.as_str().map(str::to_owned)).collect()
}

/// The request and the reply of a call.
pub fn of_call(op: &dyn AnyOp, reply: &AnyReply) -> Result<(Value, Value)> {
    texts(op.to_json()?.text(), &serde_json::from_slice(&op.encode_reply(reply)?).map_err(Error::internal)?)
}

/// The same for an op that is known by its name.
pub fn texts(request: &str, reply: &Value) -> Result<(Value, Value)> {
    Ok((serde_json::from_str(request).map_err(Error::internal)?, reply.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::op;
    use serde_json::json;

    #[test]
    fn tokens_that_a_request_names() {
        let none = json!({});
        let results = json!({ "results": [
            { "token": "task/a-1@1" }, { "token": "task/a-2@1", "error": { "code": "lease_expired" } }, { "token": "task/a-3@1", "error": null },
        ] });
        for (request, reply, tokens) in [
            (json!({ "token": "task/a-1@1", "output": "task/a-9@1" }), &none, "task/a-1@1"),
            (json!({ "tokens": ["message/7@1", "message/8@1"] }), &none, "message/7@1 message/8@1"),
            (json!({ "tasks": [{ "token": "task/a-2@1" }] }), &results, "task/a-1@1 task/a-3@1"),
            (json!({ "task": "a-1", "token": null }), &none, ""),
        ] {
            assert_eq!(named(&request, reply).join(" "), tokens, "{request}");
        }
    }

    /// A new op that writes under a claim belongs in one of the lists.
    #[test]
    fn the_lists_name_all_ops_that_write_under_a_claim() {
        for op in BY_TOKEN.iter().chain(&OTHERS) {
            assert!(op::find(op).is_ok(), "{op}");
        }
        let under_a_claim = op::registry().into_iter().filter(|op| {
            let schema = (op.request)().to_value();
            let has = |name: &str| schema["properties"].get(name).is_some();
            !op.reads && (has("token") || has("tokens"))
        });
        let kept: Vec<_> = under_a_claim.map(|op| op.name).filter(|name| !ends(name)).collect();
        // They leave the claim alive, or are of effects, which are not work.
        let alive = "task/progress task/checkpoint loop/step mail/checkpoint channel/read once/finish once/resolve claim/renew";
        assert_eq!(kept.join(" "), alive);
    }
}
