//! `finish`: the end of one claim.

use super::{Effect, Tool};
use crate::{
    arguments::{Arguments, Field, Kind},
    session::Session,
};
use fencepost::{Error, Json, Result, claim, mail, task};
use serde_json::Value;

pub const TOOL: Tool = Tool {
    name: "finish",
    about: "End your claim when the work is over: done, fail, or release to give it back unfinished. An offer from poll: accept or reject. \
            A refusal means that the work is not accepted. acknowledge: you were told that you lost a claim, and stopped that work.",
    fields: &[
        Field::new("how", Kind::Word(&["done", "fail", "release", "accept", "reject", "acknowledge"]), ""),
        Field::new(
            "output",
            Kind::Text,
            "done: the result in a few lines; tasks that depend on this one get it",
        ),
        Field::new("reason", Kind::Text, "fail, reject: why"),
        Field::new("retry", Kind::Flag, "fail: another attempt may succeed"),
        Field::new("note", Kind::Text, "release: how far you came, for the next holder"),
        Field::new("token", Kind::Text, "Default: your only claim"),
    ],
    required: &["how"],
    effect: Effect::Idempotent,
    run: |session, args| Box::pin(run(session, args)),
};

async fn run(session: &Session<'_>, args: Arguments) -> Result<Value> {
    let how = args.text("how").unwrap_or_default();
    let fields: &[&str] = match how.as_str() {
        "done" => &["how", "token", "output"],
        "fail" => &["how", "token", "reason", "retry"],
        "release" => &["how", "token", "note"],
        "reject" => &["how", "token", "reason"],
        "acknowledge" => &["how"],
        _ => &["how", "token"],
    };
    args.only(&format!("how is {how}"), fields)?;
    if how == "acknowledge" {
        return session.acknowledge().await;
    }
    let reason = || args.required("reason", "");
    let token = session.token(args.text("token")).await?;
    let is_message = token.starts_with("message/");
    let offer = || -> Result<(String, String)> {
        let agent = session
            .agent()
            .ok_or_else(|| Error::invalid("how", "decides on an offer to an agent, and you act for none"))?;
        let task = token.split_once('@').map_or(token.as_str(), |(task, _)| task);
        Ok((task.strip_prefix("task/").unwrap_or(task).to_owned(), agent))
    };
    let request = session.request();
    match how.as_str() {
        "done" if is_message => {
            let outputs = args.text("output").map(|text| Json::of(&text)).transpose()?.into_iter().collect();
            session.end(mail::Done { token, outputs, outcome: None }).await
        }
        "done" => session.end(task::Done { token, output: args.text("output") }).await,
        "fail" if is_message => {
            let fail =
                mail::Fail { token, reason: reason()?, retry: args.flag("retry"), ..mail::Fail::default() };
            session.end(fail).await
        }
        "fail" => {
            let fail = task::Fail { token, reason: reason()?, retry: args.flag("retry"), delay_ms: None };
            session.end(fail).await
        }
        "accept" => {
            let (task, agent) = offer()?;
            session.end(task::Accept { task, agent, token: Some(token), request }).await
        }
        "reject" => {
            let (task, agent) = offer()?;
            let reject = task::Reject { task, agent, reason: reason()?, token: Some(token), request };
            session.end(reject).await
        }
        _ => session.end(claim::Release { token, note: args.text("note") }).await,
    }
}
