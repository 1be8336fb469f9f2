//! GitHub's webhooks.

use super::{
    Sent, Signature, from_hex, header,
    payload::{clip, fitting, name, text},
    unsigned,
};
use axum::http::HeaderMap;
use fencepost::{Code, Error, Result, route};
use serde_json::{Value, json};

const SIGNATURE: &str = "x-hub-signature-256";
const EVENT: &str = "x-github-event";
const DELIVERY: &str = "x-github-delivery";

pub fn signature(headers: &HeaderMap) -> Result<Signature> {
    let given = header(headers, SIGNATURE).ok_or_else(|| {
        unsigned(format!("the header {SIGNATURE} is missing"))
            .hint("give the webhook the secret that the server has")
    })?;
    let mac = given.strip_prefix("sha256=").and_then(from_hex);
    let mac = mac.ok_or_else(|| unsigned(format!("the header {SIGNATURE} is no signature")))?;
    Ok(Signature { mac, at: None })
}

/// Reads an event. GitHub does not sign the headers, so a copy under another delivery id is recognised by its digest.
pub fn read(headers: &HeaderMap, body: Value, digest: String) -> Result<Sent> {
    let missing = |name: &str| Error::new(Code::Invalid, format!("the header {name} is missing"));
    let event = header(headers, EVENT).ok_or_else(|| missing(EVENT))?;
    let delivery = header(headers, DELIVERY).ok_or_else(|| missing(DELIVERY))?;
    if event == "ping" {
        return Ok(Sent::Handshake(json!({ "pong": body["zen"] })));
    }
    let event = match name(&body, &["/action"]) {
        Some(action) => format!("{event}.{action}"),
        None => event.to_owned(),
    };
    Ok(Sent::Event(Box::new(route::Deliver {
        source: "github".into(),
        delivery: delivery.into(),
        digest: Some(digest),
        text: text_of(&body).unwrap_or_else(|| event.clone()),
        // The page of the discussion: the same for every event in it.
        thread: name(
            &body,
            &[
                "/issue/html_url",
                "/pull_request/html_url",
                "/discussion/html_url",
                "/release/html_url",
                "/comment/html_url",
                "/head_commit/url",
            ],
        ),
        sender: name(&body, &["/sender/login"]),
        repository: name(&body, &["/repository/full_name"]),
        bot: body["sender"]["type"] == "Bot",
        event: clip(&event, 512),
        data: Some(fitting(body)),
        ..route::Deliver::default()
    })))
}

/// The text of a comment or a review, or else the title and the text of the issue or the like.
fn text_of(body: &Value) -> Option<String> {
    let own = text(body, &["/comment/body", "/review/body"]);
    own.or_else(|| {
        ["issue", "pull_request", "discussion", "release"].into_iter().find_map(|thing| {
            let thing = &body[thing];
            let parts: Vec<_> =
                [text(thing, &["/title", "/name"]), text(thing, &["/body"])].into_iter().flatten().collect();
            clip(&parts.join("\n\n"), 64 * 1024)
        })
    })
    .or_else(|| text(body, &["/head_commit/message", "/description"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: &'static str, body: Value) -> route::Deliver {
        let mut headers = HeaderMap::new();
        headers.insert(EVENT, kind.parse().unwrap());
        headers.insert(DELIVERY, "72d3162e".parse().unwrap());
        match read(&headers, body, "d1ge57".into()).unwrap() {
            Sent::Event(event) => *event,
            Sent::Handshake(reply) => panic!("{reply}"),
        }
    }

    #[test]
    fn an_event_has_a_text_a_thread_and_a_sender() {
        let about = |more: Value| {
            let mut body = json!({
                "action": "opened", "repository": { "full_name": "acme/api" },
                "sender": { "login": "kim", "type": "User" },
            });
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body
        };
        let issue = json!({ "number": 7, "title": "it fails", "body": "always", "html_url": "https://github.com/acme/api/issues/7" });
        let opened = event("issues", about(json!({ "issue": issue })));
        assert_eq!(
            (opened.event.as_deref(), opened.text.as_str()),
            (Some("issues.opened"), "it fails\n\nalways")
        );
        assert_eq!((opened.repository.as_deref(), opened.sender.as_deref()), (Some("acme/api"), Some("kim")));
        assert_eq!(opened.thread.as_deref(), Some("https://github.com/acme/api/issues/7"));
        assert_eq!(
            (opened.delivery.as_str(), opened.digest.as_deref(), opened.bot),
            ("72d3162e", Some("d1ge57"), false)
        );
        let comment = event("issue_comment", about(json!({ "issue": issue, "comment": { "body": "why?" } })));
        assert_eq!((comment.text.as_str(), comment.thread), ("why?", opened.thread));
        let review = event(
            "pull_request_review",
            about(json!({
                "pull_request": { "title": "a fix", "html_url": "https://github.com/acme/api/pull/8" }, "review": { "body": null },
            })),
        );
        assert_eq!(
            (review.text.as_str(), review.thread.as_deref()),
            ("a fix", Some("https://github.com/acme/api/pull/8"))
        );
        let push = event(
            "push",
            json!({ "ref": "refs/heads/main", "head_commit": { "message": "mend it", "url": "u" } }),
        );
        assert_eq!(
            (push.event.as_deref(), push.text.as_str(), push.thread.as_deref()),
            (Some("push"), "mend it", Some("u"))
        );
        let bot = event("issues", about(json!({ "sender": { "login": "dependabot[bot]", "type": "Bot" } })));
        assert_eq!((bot.bot, bot.text.as_str()), (true, "issues.opened"), "there is always a text");
        for odd in [json!([]), json!(null), json!({ "issue": [1], "sender": "kim" })] {
            assert_eq!(event("star", odd).text, "star");
        }
    }
}
