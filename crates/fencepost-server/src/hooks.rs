//! `POST /hooks/slack` and `POST /hooks/github`: what providers tell of, as deliveries that are routed to agents.
//!
//! A provider has no key of the fleet. It signs what it sends with a secret that it shares with this server. What the
//! headers say of the signature is looked at before the body is taken, and the signature before anything else is: nothing
//! of what is sent is believed, or costs the database anything, until then.

mod github;
mod payload;
mod slack;

use crate::{
    App, Secret,
    answer::{self, Refusal},
    call::{self, Asked, Intake},
    deliver,
    door::Peer,
    line::Line,
};
use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use fencepost::{Code, Error, Result, admin, route};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest, Sha256};

pub const SLACK: &str = "/hooks/slack";
pub const GITHUB: &str = "/hooks/github";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Provider {
    Slack,
    GitHub,
}

/// What a provider wants.
#[derive(Debug)]
enum Said {
    /// An answer, to see that we are there.
    Hello(Value),
    Told(Box<route::Deliver>),
}

pub async fn slack(State(app): State<App>, request: Request) -> Response {
    Provider::Slack.receive(app, request).await
}

pub async fn github(State(app): State<App>, request: Request) -> Response {
    Provider::GitHub.receive(app, request).await
}

impl Provider {
    async fn receive(self, app: App, request: Request) -> Response {
        let mut line = Line::new(app.clone(), self.op(), request.headers());
        match self.answer(&app, &mut line, request).await {
            Ok((outcome, reply)) => {
                line.end_as(outcome);
                answer::json(StatusCode::OK, reply)
            }
            Err(refusal) => {
                line.end(Some(refusal.error.code()));
                let mut response = refusal.into_response();
                // It is told already.
                response.extensions_mut().remove::<answer::Outcome>();
                response
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
            return Err(self.closed().into());
        }
        let peer = Peer::of(request.extensions());
        let said = self.heard(app, request, secrets).await.or_else(|refusal| {
            if refusal.error.code() == Code::Unauthorized {
                // Guessing is slow; who signs as agreed is not slowed down by it.
                app.door.guessed(peer)?;
            }
            Err(refusal)
        })?;
        let told = match said {
            Said::Hello(reply) => return Ok(("ok", reply.to_string())),
            Said::Told(told) => told,
        };
        let fleet = app.fleet.clone();
        let delivered = deliver::unbroken(app, async move { fleet.call(*told).await }).await?;
        line.asked(Asked { agent: delivered.agent.clone(), ..Asked::default() }, None);
        let reply = serde_json::to_string(&delivered).map_err(Error::internal)?;
        Ok((delivered.outcome.as_str(), reply))
    }

    /// What is said, if it is from whom it should be, and of now.
    async fn heard(self, app: &App, request: Request, secrets: &[Secret]) -> Result<Said, Refusal> {
        let (head, body) = request.into_parts();
        let signature = match self.signature(app, &head.headers).await {
            Ok(signature) => signature,
            Err(error) => {
                call::see_off(body).await;
                return Err(Refusal::from(error).and_close());
            }
        };
        let most = app.settings.hook_size.min(app.settings.body_size);
        let intake = Intake { most, option: "--hook-size", room: &app.hook_bodies };
        let body = call::body_of(app, &head.headers, body, intake).await;
        let body = body.map_err(|refusal| self.advise(refusal))?;
        if !signature.fits(secrets, &body) {
            return Err(unsigned("the signature is not that of our secret".into()).into());
        }
        if let Some(at) = &signature.at {
            // The time of the fleet, by which all else is decided, too.
            slack::check_time(at, app.fleet.call(admin::About {}).await?.now)?;
        }
        Ok(self.read(&head.headers, &body)?)
    }

    /// What the headers say: it can fit only if there is one, and if it is of now, as far as that is known without
    /// asking the database.
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

    fn read(self, headers: &HeaderMap, body: &[u8]) -> Result<Said> {
        let json: Value = serde_json::from_slice(body)
            .map_err(|e| Error::new(Code::Invalid, format!("the request is not JSON: {e}")))?;
        let digest = digest(body);
        match self {
            Provider::Slack => Ok(slack::read(json, digest)),
            Provider::GitHub => github::read(headers, json, digest),
        }
    }

    fn closed(self) -> Error {
        let (name, flag, variable) = match self {
            Provider::Slack => ("Slack", "--slack-secret", "FENCE_SLACK_SECRET"),
            Provider::GitHub => ("GitHub", "--github-secret", "FENCE_GITHUB_SECRET"),
        };
        Error::new(
            Code::NotFound,
            format!("nothing is taken from {name} here: the server has no secret for it"),
        )
        .hint(format!("fence serve {flag}, {variable} or fence.toml sets the one that {name} signs with"))
    }

    /// Forms are signed, too, and would be read differently.
    fn advise(self, mut refusal: Refusal) -> Refusal {
        if refusal.status != StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return refusal;
        }
        let hint = match self {
            Provider::Slack => {
                "only Slack's Events API is understood, which sends JSON; slash commands are not"
            }
            Provider::GitHub => "set the webhook's content type to application/json",
        };
        refusal.error = refusal.error.hint(hint);
        refusal
    }
}

/// A header's text, if it is there.
fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok().map(str::trim).filter(|text| !text.is_empty())
}

fn unsigned(why: String) -> Error {
    Error::new(Code::Unauthorized, why)
        .hint("what is sent here must be signed with the secret that was agreed")
}

/// A signature as the headers have it. Nothing says yet that it fits.
#[derive(Debug)]
struct Signature {
    mac: [u8; 32],
    /// When it was signed, in seconds and as it was written: Slack signs that, too.
    at: Option<String>,
}

impl Signature {
    /// Whether one of the secrets signed this.
    fn fits(&self, secrets: &[Secret], body: &[u8]) -> bool {
        match &self.at {
            None => is_signed(secrets, &[body], &self.mac),
            Some(at) => is_signed(secrets, &[b"v0:", at.as_bytes(), b":", body], &self.mac),
        }
    }
}

/// The comparison takes as long whatever differs.
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

    /// The examples of both providers' own documentation.
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
