//! The list of ops, by name. A noun lists its verbs in `verbs![…]` of `ops/NOUN.rs`; a new noun gets a line in
//! [`visit_all`].

use crate::{
    engine::op::{Entry, Op, Visit},
    error::{Code, Error, Result},
};

/// Passes every op to a visitor.
pub fn visit_all(visitor: &mut impl Visit) {
    super::task::visit(visitor);
    super::board::visit(visitor);
    super::loops::visit(visitor);
    super::mail::visit(visitor);
    super::agent::visit(visitor);
    super::inbox::visit(visitor);
    super::channel::visit(visitor);
    super::route::visit(visitor);
    super::storm::visit(visitor);
    super::spend::visit(visitor);
    super::lock::visit(visitor);
    super::once::visit(visitor);
    super::claim::visit(visitor);
    super::run::visit(visitor);
    super::event::visit(visitor);
    super::key::visit(visitor);
    super::admin::visit(visitor);
}

/// Every op, by name.
pub fn registry() -> Vec<Entry> {
    struct All(Vec<Entry>);
    impl Visit for All {
        fn op<O: Op>(&mut self) {
            self.0.push(Entry::of::<O>());
        }
    }
    let mut all = All(Vec::new());
    visit_all(&mut all);
    all.0
}

/// Finds an op by its name, or lists the names.
pub fn find(name: &str) -> Result<Entry> {
    let all = registry();
    all.iter().find(|entry| entry.name == name || entry.formerly == Some(name)).cloned().ok_or_else(|| {
        let noun = name.split('/').next().unwrap_or_default();
        let near: Vec<_> = all.iter().map(|e| e.name).filter(|n| n.split('/').next() == Some(noun)).collect();
        let names = if near.is_empty() { all.iter().map(|e| e.name).collect() } else { near };
        Error::new(Code::NotFound, format!("there is no op `{name}`"))
            .hint(format!("there are {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Millis,
        engine::op::{digest, erase, listed},
        ops::{mail, task},
    };

    #[test]
    fn a_refusal_that_the_op_does_not_list_is_an_error() {
        let gives = |code| listed("task/park", task::Park::REFUSES, Error::new(code, "no")).code();
        assert_eq!(gives(Code::AlreadyClaimed), Code::AlreadyClaimed);
        assert_eq!(gives(Code::Forbidden), Code::Forbidden);
        assert_eq!(gives(Code::Paused), Code::Internal);
    }

    #[test]
    fn a_request_is_the_same_however_it_is_written() {
        let of = |json: &str| digest(&*find("mail/push").unwrap().decode(json).unwrap(), "k").unwrap();
        let plain = of(r#"{"mailbox": "s", "payload": {"a": 1, "b": [null]}}"#);
        for same in [
            r#"{"payload": {"b": [null], "a": 1}, "mailbox": "s"}"#,
            r#"{"mailbox": "s", "payload": {"a":1,"b":[null]}, "request": "r", "headers": {}, "key": null}"#,
        ] {
            assert_eq!(of(same), plain, "{same}");
        }
        for other in [
            r#"{"mailbox": "s", "payload": {"a": 1, "b": []}}"#,
            r#"{"mailbox": "s", "payload": {"a": 1, "b": [null]}, "priority": 0}"#,
            r#"{"mailbox": "t", "payload": {"a": 1, "b": [null]}}"#,
        ] {
            assert_ne!(of(other), plain, "{other}");
        }
        let push = erase(mail::Push::new("s", "x"));
        assert_ne!(digest(&*push, "k"), digest(&*push, "l"));
        let claim = |wait| erase(task::Claim { wait_ms: wait, ..task::Claim::next("auth", "a") });
        assert_eq!(digest(&*claim(None), ""), digest(&*claim(Some(Millis(7))), ""));
    }
}
