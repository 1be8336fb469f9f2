//! Which claims does an op end? The fleet keeps only the last end of an item, so a session records what it ended itself.

use super::resource;
use fencepost::op::{AnyOp, AnyReply};
use serde_json::Value;

/// Ops that end claims. After others the fleet is asked.
const ENDS: [&str; 18] = [
    "claim/release",
    "claim/unclaim",
    "inbox/respond",
    "loop/cancel",
    "loop/verdict",
    "mail/done",
    "mail/done_many",
    "mail/fail",
    "mail/release",
    "mail/reset",
    "run/end",
    "run/settle",
    "task/accept",
    "task/cancel",
    "task/done",
    "task/done_many",
    "task/fail",
    "task/reject",
];

/// The claims that an op ended, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ends {
    pub verb: String,
    which: Vec<Which>,
    /// Claims that were lost before.
    except: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Which {
    Token(String),
    Resource(String),
    /// All claims of a run whose resource begins so.
    Run(String, &'static str),
    Board(String),
}

impl Ends {
    /// `None` if the op ends no claims. It was called, and this is its reply.
    pub fn of_call(op: &dyn AnyOp, reply: &AnyReply) -> Option<Self> {
        if !ENDS.contains(&op.name()) {
            return None;
        }
        let request = serde_json::from_str(op.to_json().ok()?.text()).ok()?;
        Self::of(op.name(), &request, &serde_json::from_slice(&op.encode_reply(reply).ok()?).ok()?)
    }

    /// The same for an op that is known by its name.
    pub fn of(op: &str, request: &Value, reply: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let texts =
            |value: &Value| value.as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>();
        let (_, verb) = op.split_once('/').filter(|_| ENDS.contains(&op))?;
        let which = match op {
            "mail/release" => texts(&request["tokens"]).into_iter().map(Which::Token).collect(),
            "task/done_many" | "mail/done_many" => {
                let results = reply["results"].as_array()?.iter();
                let accepted = results.filter(|result| result["error"].is_null());
                accepted.filter_map(|result| text(&result["token"])).map(Which::Token).collect()
            }
            "inbox/respond" => vec![match text(&request["message"])? {
                token if token.contains('@') => Which::Token(token),
                message => Which::Resource(message),
            }],
            "task/cancel" => vec![Which::Resource(format!("task/{}", text(&reply["task"]["id"])?))],
            "claim/unclaim" => vec![Which::Resource(text(&reply["resource"])?)],
            "run/end" | "run/settle" => vec![Which::Run(text(&reply["run"]["name"])?, "")],
            "mail/reset" => vec![Which::Run(text(&request["run"])?, "message/")],
            "loop/cancel" => vec![Which::Board(text(&request["id"])?)],
            _ => vec![Which::Token(text(&request["token"])?)],
        };
        let verb = match request["outcome"].as_str().filter(|_| op == "run/settle") {
            Some("failed") => "fail",
            Some("released") => "release",
            _ => verb,
        };
        Some(Self { verb: verb.to_owned(), which, except: texts(&reply["lost"]) })
    }

    /// Did it end the claim with this token? Its run is not known if it lapsed while the fleet could not be asked.
    pub fn includes(&self, token: &str, run: Option<&str>) -> bool {
        let item = resource(token);
        let is_it = |which: &Which| match which {
            Which::Token(ended) => ended == token,
            Which::Resource(ended) => ended == item,
            Which::Run(ended, kind) => run == Some(ended) && item.starts_with(kind),
            Which::Board(board) => {
                let task = item.strip_prefix("task/").and_then(|task| task.rsplit_once('-'));
                task.is_some_and(|(of, _)| of == board)
            }
        };
        self.which.iter().any(is_it) && !self.except.iter().any(|lost| lost == token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fencepost::op;
    use serde_json::json;

    #[test]
    fn what_an_op_ends() {
        let none = json!({});
        let results = json!({ "results": [
            { "token": "task/a-1@1", "error": null }, { "token": "task/a-2@1", "error": { "code": "lease_expired" } },
        ] });
        let ended = json!({ "run": { "name": "r" }, "lost": ["task/a-2@1"] });
        for (op, request, reply, verb, tokens) in [
            ("task/done", json!({ "token": "task/a-1@1" }), &none, "done", "task/a-1@1"),
            ("claim/release", json!({ "token": "message/7@1" }), &none, "release", "message/7@1"),
            ("task/reject", json!({ "token": "task/a-1@1" }), &none, "reject", "task/a-1@1"),
            ("mail/release", json!({ "tokens": ["message/7@1", "x"] }), &none, "release", "message/7@1"),
            ("task/done_many", none.clone(), &results, "done_many", "task/a-1@1"),
            ("inbox/respond", json!({ "message": "message/7@1" }), &none, "respond", "message/7@1"),
            ("inbox/respond", json!({ "message": "message/7" }), &none, "respond", "message/7@1"),
            ("task/cancel", none.clone(), &json!({ "task": { "id": "a-1" } }), "cancel", "task/a-1@1"),
            ("claim/unclaim", none.clone(), &json!({ "resource": "task/a-1" }), "unclaim", "task/a-1@1"),
            ("run/end", none.clone(), &ended, "end", "task/a-1@1 task/ab-1@1 message/7@1"),
            (
                "run/settle",
                json!({ "outcome": "failed" }),
                &ended,
                "fail",
                "task/a-1@1 task/ab-1@1 message/7@1",
            ),
            (
                "run/settle",
                json!({ "outcome": "done" }),
                &ended,
                "settle",
                "task/a-1@1 task/ab-1@1 message/7@1",
            ),
            ("mail/reset", json!({ "run": "r" }), &none, "reset", "message/7@1"),
            ("loop/cancel", json!({ "id": "a" }), &none, "cancel", "task/a-1@1 task/a-2@1"),
        ] {
            assert!(op::find(op).is_ok(), "{op}");
            let ends = Ends::of(op, &request, reply).expect(op);
            let all = ["task/a-1@1", "task/a-2@1", "task/ab-1@1", "message/7@1"];
            let held = all.into_iter().filter(|token| ends.includes(token, Some("r")));
            assert_eq!(
                (ends.verb.as_str(), held.collect::<Vec<_>>().join(" ").as_str()),
                (verb, tokens),
                "{op}"
            );
        }
        // All messages of a mailbox, whoever holds them: the fleet knows.
        assert_eq!(Ends::of("mail/reset", &json!({ "mailbox": "box" }), &none), None);
        for op in
            ["task/claim", "task/progress", "claim/renew", "mail/checkpoint", "run/renew", "once/finish"]
        {
            assert_eq!(Ends::of(op, &json!({ "token": "task/a-1@1" }), &ended), None, "{op}");
        }
        let of_other = Ends::of("run/end", &none, &ended).expect("an end");
        assert!(!of_other.includes("task/a-1@1", Some("s")) && !of_other.includes("task/a-1@1", None));
    }
}
