//! Slack's Events API.

use super::{
    Sent, Signature, from_hex, header,
    payload::{fitting, name, text, without},
    unsigned,
};
use axum::http::HeaderMap;
use fencepost::{Millis, Result, Time, route};
use serde_json::{Value, json};

const SIGNATURE: &str = "x-slack-signature";
const TIMESTAMP: &str = "x-slack-request-timestamp";

/// A request signed earlier or later than this is refused as a replay, as Slack advises.
const WINDOW: Millis = Millis::minutes(5);

/// The longest id that the fleet accepts as a key.
const ID_MAX: usize = 128;

pub fn signature(headers: &HeaderMap) -> Result<Signature> {
    let missing = |name: &str| unsigned(format!("the header {name} is missing"));
    let given = header(headers, SIGNATURE).ok_or_else(|| missing(SIGNATURE))?;
    let at = header(headers, TIMESTAMP).ok_or_else(|| missing(TIMESTAMP))?;
    let mac = given.strip_prefix("v0=").and_then(from_hex);
    let mac = mac.ok_or_else(|| unsigned(format!("the header {SIGNATURE} is no signature")))?;
    Ok(Signature { mac, at: Some(at.to_owned()) })
}

pub fn check_time(at: &str, now: Time) -> Result<()> {
    let seconds: i64 =
        at.parse().map_err(|_| unsigned(format!("the header {TIMESTAMP} is not a time in seconds")))?;
    if is_recent(Time(seconds.saturating_mul(1000)), now) {
        return Ok(());
    }
    Err(unsigned(format!("the request was signed at {seconds}, more than {WINDOW} from now"))
        .hint("if nobody replayed it, check the clock of the fleet's machine"))
}

fn is_recent(signed: Time, now: Time) -> bool {
    now.0.saturating_sub(signed.0).saturating_abs() <= WINDOW.0
}

/// Reads an event. Of an unknown kind, it takes the fields that all kinds share.
pub fn read(body: Value, digest: String) -> Sent {
    if body["type"] == "url_verification" {
        return Sent::Handshake(json!({ "challenge": body["challenge"] }));
    }
    let event = &body["event"];
    let kind = name(&body, &["/event/type", "/type"]).unwrap_or_else(|| "unknown".into());
    let kind = match name(event, &["/subtype"]) {
        Some(subtype) => format!("{kind}.{subtype}"),
        None => kind,
    };
    let channel = name(event, &["/channel", "/item/channel"]);
    let team = name(&body, &["/team_id"]).unwrap_or_default();
    // Slack sends a mention twice: as a mention and as a message. Both have this item.
    let item =
        channel.as_ref().zip(name(event, &["/ts"])).map(|(channel, ts)| format!("{team}/{channel}/{ts}"));
    Sent::Event(Box::new(route::Deliver {
        source: "slack".into(),
        delivery: name(&body, &["/event_id"]).filter(|id| id.len() <= ID_MAX).unwrap_or(digest),
        text: text(event, &["/text", "/message/text"]).unwrap_or_else(|| kind.clone()),
        item: item.filter(|item| item.len() <= ID_MAX),
        // A reply to a post begins a thread under it.
        thread: name(event, &["/thread_ts", "/message/thread_ts", "/ts", "/item/ts"]),
        sender: name(event, &["/user", "/message/user"]),
        bot: is_automatic(event),
        event: Some(kind),
        channel,
        // The token is a secret of an older protocol.
        data: Some(fitting(without(body, &["token"]))),
        ..route::Deliver::default()
    }))
}

/// Whether an app sent it, possibly ours; or whether a change leaves the text as it was, as when Slack adds a preview of
/// a link.
fn is_automatic(event: &Value) -> bool {
    let by_bot = |of: &Value| of["bot_id"].is_string() || of["subtype"] == "bot_message";
    let unchanged = event["subtype"] == "message_changed"
        && event["message"]["text"].is_string()
        && event["message"]["text"] == event["previous_message"]["text"];
    by_bot(event) || by_bot(&event["message"]) || unchanged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(body: Value) -> route::Deliver {
        match read(body, "d1ge57".into()) {
            Sent::Event(event) => *event,
            Sent::Handshake(reply) => panic!("{reply}"),
        }
    }

    #[test]
    fn a_message_and_a_mention_are_the_same_post() {
        let post = |kind: &str, id: &str| {
            event(json!({
                "token": "old", "type": "event_callback", "team_id": "T1", "event_id": id,
                "event": { "type": kind, "channel": "C1", "user": "U1", "text": "hi <@U9>", "ts": "1.2" },
            }))
        };
        let (message, mention) = (post("message", "Ev1"), post("app_mention", "Ev2"));
        assert_eq!((message.delivery.as_str(), mention.delivery.as_str()), ("Ev1", "Ev2"));
        assert_eq!((message.item.as_deref(), message.item.clone()), (Some("T1/C1/1.2"), mention.item));
        assert_eq!((message.event.as_deref(), message.channel.as_deref()), (Some("message"), Some("C1")));
        assert_eq!((message.sender.as_deref(), message.text.as_str()), (Some("U1"), "hi <@U9>"));
        assert_eq!((message.thread.as_deref(), message.bot), (Some("1.2"), false));
        let data = message.data.unwrap();
        assert!(data["token"].is_null() && data["event"]["ts"] == "1.2", "{data}");
    }

    #[test]
    fn a_reply_is_in_its_thread_and_its_sender_may_be_an_object() {
        let reply = event(
            json!({ "event": { "type": "message", "thread_ts": "1.0", "ts": "1.2", "user": { "id": "U3" } } }),
        );
        assert_eq!((reply.thread.as_deref(), reply.sender.as_deref()), (Some("1.0"), Some("U3")));
        assert_eq!(
            (reply.text.as_str(), reply.delivery.as_str()),
            ("message", "d1ge57"),
            "there is always a text and an id"
        );
    }

    #[test]
    fn automatic_events_are_marked_as_bots() {
        let bot = |sent: Value| event(json!({ "event_id": "Ev1", "event": sent })).bot;
        assert!(bot(json!({ "type": "message", "bot_id": "B1", "text": "beep" })));
        assert!(bot(json!({ "type": "message", "subtype": "bot_message", "text": "beep" })));
        let change = |now: &str, before: &str| {
            json!({
                "type": "message", "subtype": "message_changed",
                "message": { "text": now, "user": "U1" }, "previous_message": { "text": before },
            })
        };
        assert!(bot(change("see https://a.b", "see https://a.b")) && !bot(change("see it", "see")));
        let changed = event(json!({ "event": change("see it", "see") }));
        assert_eq!(
            (changed.event.as_deref(), changed.text.as_str()),
            (Some("message.message_changed"), "see it")
        );
        assert_eq!(changed.sender.as_deref(), Some("U1"));
    }

    #[test]
    fn events_of_unknown_kinds_are_read_as_far_as_possible() {
        for body in
            [json!({}), json!([]), json!(7), json!({ "type": "app_rate_limited", "minute_rate_limited": 1 })]
        {
            let event = event(body);
            assert!(!event.text.is_empty() && event.delivery == "d1ge57", "{event:?}");
        }
        let reaction =
            event(json!({ "event": { "type": "reaction_added", "item": { "channel": "C1", "ts": "1.2" } } }));
        assert_eq!(
            (reaction.channel.as_deref(), reaction.thread.as_deref(), reaction.item),
            (Some("C1"), Some("1.2"), None)
        );
    }

    #[test]
    fn the_window_is_five_minutes_in_both_directions() {
        let now = Time(10_000_000);
        for (signed, fits) in
            [(0, true), (300_000, true), (-300_000, true), (300_001, false), (-300_001, false)]
        {
            assert_eq!(is_recent(Time(now.0 + signed), now), fits, "{signed}");
        }
        assert!(!is_recent(Time(i64::MAX), now) && !is_recent(Time(i64::MIN), now));
    }
}
