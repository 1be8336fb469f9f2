//! One line for each request: op, agent, run, outcome and time.

use crate::{App, call::Asked, span::Span};
use axum::http::HeaderMap;
use fencepost::{Code, key::Key};
use tokio::time::Instant;

/// Characters of a text that are told, at most. More than any name or token has that an op accepts: the longest is the
/// token of a task on a board whose name is as long as names may be, 173.
const TOLD: usize = 200;

/// Someone else's text, before anybody has checked it: a line of the log, or a span, must not be as large as a request.
pub fn clip(text: &str) -> String {
    match text.char_indices().nth(TOLD) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

/// A request that is under way. If it is dropped before it has an answer, its client is gone, and that is told.
#[derive(Debug)]
pub struct Line {
    app: App,
    op: &'static str,
    asked: Asked,
    key: Option<String>,
    // Real time: it is measured for people, and decides nothing.
    began: Instant,
    outcome: Option<&'static str>,
    span: Option<Span>,
}

impl Line {
    pub fn new(app: App, op: &'static str, headers: &HeaderMap) -> Self {
        let span = Span::begin(&app, op, headers);
        Self { app, op, asked: Asked::default(), key: None, began: Instant::now(), outcome: None, span }
    }

    pub fn asked(&mut self, asked: Asked, key: Option<&Key>) {
        self.asked = asked;
        self.key = key.map(|key| key.name.clone());
        self.asked.agent = self.asked.agent.take().or_else(|| key?.agent.clone());
    }

    pub fn end(mut self, outcome: Option<Code>) {
        if let (Some(span), Some(code)) = (&mut self.span, outcome) {
            span.refused(code);
        }
        self.outcome = Some(outcome.map_or("ok", Code::as_str));
    }

    /// It was done, and in which way is worth a word.
    pub fn end_as(mut self, outcome: &'static str) {
        self.outcome = Some(outcome);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let took = self.began.elapsed();
        let outcome = self.outcome.unwrap_or("gone");
        self.app.metrics.answered(self.op, outcome, took, self.asked.wait.is_some());
        if let Some(span) = self.span.take() {
            span.end(&self.asked, self.key.as_deref(), outcome);
        }
        tracing::info!(
            target: "fence::request",
            op = self.op,
            key = self.key,
            agent = self.asked.agent,
            run = self.asked.run,
            token = self.asked.token,
            outcome,
            ms = took.as_micros() as f64 / 1000.0,
        );
    }
}
