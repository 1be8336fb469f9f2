//! `POST /hooks/slack` and `POST /hooks/github`: events of providers, as deliveries that are routed to agents.
//!
//! A provider has no key of the fleet. It signs each request with a secret that it shares with this server. The headers
//! of the signature are checked before the body is read, and the signature before anything else. Until then nothing in
//! the request is trusted and nothing of it costs the database anything.

mod github;
mod payload;
mod slack;

use crate::{
    access::peer::Peer,
    app::App,
    http::{
        body::{self, BodyLimits},
        response::{self, Refusal},
    },
    ops::delivery,
    settings::Secret,
    telemetry::request_log::{Fields, Line},
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::Response,
};
use fencepost::{Code, Error, Result, admin, route};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    Slack,
    GitHub,
}

/// A request of a provider.
#[derive(Debug)]
enum Sent {
    /// A test of the address, and the reply to it.
    Handshake(Value),
    Event(Box<route::Deliver>),
}

pub async fn slack(State(app): State<App>, request: Request) -> Response {
    Provider::Slack.receive(app, request).await
}

pub async fn github(State(app): State<App>, request: Request) -> Response {
    Provider::GitHub.receive(app, request).await
}

impl Provider {
    async fn receive(self, app: App, request: Request) -> Response {
        let mut line = Line::begin(&app.telemetry, self.op(), request.headers());
        match self.answer(&app, &mut line, request).await {
            Ok((outcome, reply)) => {
                line.end_as(outcome);
                response::json(StatusCode::OK, reply)
            }
            Err(refusal) => {
                line.end(Some(refusal.error.code()));
                response::logged(refusal)
            }
        }
    }

    async fn answer(
        self,
        app: &App,
        line: &mut Line,
        request: Request,
    ) -> Result<(&'static str, String), Refusal> {
        let secrets = self.secrets(app);
        if secrets.is_empty() {
            return Err(self.disabled().into());
        }
        let peer = Peer::of(request.extensions());
        let sent = self.verify(app, request, secrets).await.or_else(|refusal| {
            if refusal.error.code() == Code::Unauthorized {
                // Only wrong signatures are slowed down, never valid requests.
                app.access.wrong_guess(peer)?;
            }
            Err(refusal)
        })?;
        let event = match sent {
            Sent::Handshake(reply) => return Ok(("ok", reply.to_string())),
            Sent::Event(event) => event,
        };
        let fleet = app.fleet.clone();
        let delivered = delivery::run_to_end(app, async move { fleet.call(*event).await }).await?;
        line.set_caller(Fields { agent: delivered.agent.clone(), ..Fields::default() }, None);
        let reply = serde_json::to_string(&delivered).map_err(Error::internal)?;
        Ok((delivered.outcome.as_str(), reply))
    }

    /// Reads the request, if the provider signed it and it is recent.
    async fn verify(self, app: &App, request: Request, secrets: &[Secret]) -> Result<Sent, Refusal> {
        let (head, body) = request.into_parts();
        let signature = match self.signature(app, &head.headers).await {
            Ok(signature) => signature,
            Err(error) => {
                body::drain(body).await;
                return Err(Refusal::from(error).and_close());
            }
        };
        let limits = BodyLimits {
            size: app.settings.hook_size.min(app.settings.body_size),
            size_option: "--hook-size",
            time: app.settings.body_time,
            memory: &app.webhook_memory,
        };
        let body = limits.read(&head.headers, body).await;
        let body = body.map_err(|refusal| self.add_hint(refusal))?;
        if !signature.is_valid(secrets, &body) {
            return Err(unsigned("the signature does not match".into()).into());
        }
        if let Some(at) = &signature.at {
            // The fleet's clock decides, as everywhere.
            slack::check_time(at, app.fleet.call(admin::About {}).await?.now)?;
        }
        Ok(self.read(&head.headers, &body)?)
    }

    /// The signature in the headers. Refused if it is missing, or too old by the cached time of the database.
    async fn signature(self, app: &App, headers: &HeaderMap) -> Result<Signature> {
        let signature = match self {
            Provider::Slack => slack::signature(headers)?,
            Provider::GitHub => github::signature(headers)?,
        };
        if let Some(at) = &signature.at {
            slack::check_time(at, app.about().await?.now)?;
        }
        Ok(signature)
    }

    fn op(self) -> &'static str {
        match self {
            Provider::Slack => "hooks/slack",
            Provider::GitHub => "hooks/github",
        }
    }

    fn secrets(self, app: &App) -> &[Secret] {
        match self {
            Provider::Slack => &app.settings.slack_secret,
            Provider::GitHub => &app.settings.github_secret,
        }
    }

    fn read(self, headers: &HeaderMap, body: &[u8]) -> Result<Sent> {
        let json: Value = serde_json::from_slice(body)
            .map_err(|e| Error::new(Code::Invalid, format!("the request is not JSON: {e}")))?;
        let digest = digest(body);
        match self {
            Provider::Slack => Ok(slack::read(json, digest)),
            Provider::GitHub => github::read(headers, json, digest),
        }
    }

    fn disabled(self) -> Error {
        let (name, flag, variable) = match self {
            Provider::Slack => ("Slack", "--slack-secret", "FENCE_SLACK_SECRET"),
            Provider::GitHub => ("GitHub", "--github-secret", "FENCE_GITHUB_SECRET"),
        };
        Error::new(Code::NotFound, format!("webhooks of {name} are off: the server has no secret for them"))
            .hint(format!(
                "set the secret that {name} signs with: fence serve {flag}, {variable} or fence.toml"
            ))
    }

    /// Names the provider's own setting. Providers also sign forms, which this server does not read.
    fn add_hint(self, mut refusal: Refusal) -> Refusal {
        if refusal.status != StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return refusal;
        }
        let hint = match self {
            Provider::Slack => {
                "only Slack's Events API is supported, which sends JSON; slash commands are not"
            }
            Provider::GitHub => "set the webhook's content type to application/json",
        };
        refusal.error = refusal.error.hint(hint);
        refusal
    }
}

/// A header's text, if it is there and not empty.
fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim).filter(|text| !text.is_empty())
}

fn unsigned(why: String) -> Error {
    Error::new(Code::Unauthorized, why).hint("sign the request with the secret that the server was given")
}

/// A signature from the headers, not yet compared with the body.
#[derive(Debug)]
struct Signature {
    mac: [u8; 32],
    /// Slack's timestamp in seconds, as text: it is part of what Slack signs.
    at: Option<String>,
}

impl Signature {
    /// Whether one of the secrets signed this body.
    fn is_valid(&self, secrets: &[Secret], body: &[u8]) -> bool {
        match &self.at {
            None => is_signed(secrets, &[body], &self.mac),
            Some(at) => is_signed(secrets, &[b"v0:", at.as_bytes(), b":", body], &self.mac),
        }
    }
}

/// The comparison takes the same time for every wrong signature.
fn is_signed(secrets: &[Secret], parts: &[&[u8]], mac: &[u8; 32]) -> bool {
    secrets.iter().any(|secret| {
        Hmac::<Sha256>::new_from_slice(secret.bytes()).is_ok_and(|mut own| {
            parts.iter().for_each(|part| own.update(part));
            own.verify_slice(mac).is_ok()
        })
    })
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

fn digest(body: &[u8]) -> String {
    Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of both providers' documentation.
    #[test]
    fn signatures_are_as_the_providers_make_them() {
        let secrets = |text: &str| vec![Secret::new("another").unwrap(), Secret::new(text).unwrap()];
        let slack = "token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&\
            channel_id=G8PSS9T3V&channel_name=foobar&user_id=U2CERLKJA&user_name=roadrunner&\
            command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com%2Fcommands%2FT1DC2JH3J%2F\
            397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c";
        let signed = "a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503";
        let parts: [&[u8]; 2] = [b"v0:1531420618:", slack.as_bytes()];
        let is_signed = |secrets: &[Secret], parts: &[&[u8]], mac: &str| {
            from_hex(mac).is_some_and(|mac| is_signed(secrets, parts, &mac))
        };
        assert!(is_signed(&secrets("8f742231b10e8888abcd99yyyzzz85a5"), &parts, signed));
        let other: [&[u8]; 2] = [b"v0:1531420619:", slack.as_bytes()];
        assert!(!is_signed(&secrets("8f742231b10e8888abcd99yyyzzz85a5"), &other, signed));
        let github = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert!(is_signed(&secrets("It's a Secret to Everybody"), &[b"Hello, World!"], github));
        assert!(!is_signed(&secrets("It's a secret to everybody"), &[b"Hello, World!"], github));
        assert!(!is_signed(&[], &[b"Hello, World!"], github));
        for wrong in ["", "757107ea", &github.replace('7', "+"), &format!("{github}00")] {
            assert!(
                !is_signed(&secrets("It's a Secret to Everybody"), &[b"Hello, World!"], wrong),
                "{wrong}"
            );
        }
    }
}
