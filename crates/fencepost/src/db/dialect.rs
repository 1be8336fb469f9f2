//! One SQL text for both databases: all differences between SQLite and PostgreSQL are here, or are declared on a statement.
//!
//! Statements are written for SQLite. [`to_postgres`] changes four things in their text, and leaves literals, quoted names and
//! comments alone:
//! - `?1` becomes `$1`;
//! - `/*pg for update skip locked*/` is a comment for SQLite, and PostgreSQL gets its content as SQL;
//! - `json_each(` becomes `fence_each(`, a function of our schema (`migrations/0001_runs.sql`): PostgreSQL's own `json_each` does
//!   something else;
//! - a set of keys becomes an array, which PostgreSQL looks up in an index.
//!
//! A statement that needs more says so where it is made ([`Stmt`](super::Stmt)): `lock` and `only_on_postgres` are not run on
//! SQLite, and `on_postgres` gives PostgreSQL another text. Migrations have a translation of their own,
//! [`migration_to_postgres`].

/// The set of keys that [`by_keys!`](super::by_keys) writes.
const KEYS: &str = "in (select cast(value ->> 'k' as bigint) from json_each(?1))";
/// PostgreSQL estimates the set above at a hundred keys, and then prefers to walk through the whole table in key order:
/// 15 ms to lock one of 20,000 messages.
const KEYS_ON_POSTGRES: &str = "= any(array(select cast(value ->> 'k' as bigint) from fence_each($1)))";

const EACH: &str = "json_each(";
const EACH_ON_POSTGRES: &str = "fence_each(";
const ONLY_POSTGRES: &str = "/*pg";

pub(crate) fn to_postgres(sql: &str) -> String {
    let mut out = String::with_capacity(sql.len() + 32);
    let mut rest = sql;
    while let Some(next) = rest.chars().next() {
        let (taken, put) = match next {
            '\'' | '"' => (quoted(rest, next), None),
            '-' if rest.starts_with("--") => (rest.find('\n').unwrap_or(rest.len()), None),
            '/' if rest.starts_with(ONLY_POSTGRES) => (ONLY_POSTGRES.len(), Some("")),
            '/' if rest.starts_with("/*") => (rest.find("*/").map_or(rest.len(), |end| end + 2), None),
            // The end of a `/*pg` part. The arm above takes any other comment as a whole.
            '*' if rest.starts_with("*/") => (2, Some("")),
            '$' => (dollar_quoted(rest), None),
            '?' if rest[1..].starts_with(|c: char| c.is_ascii_digit()) => (1, Some("$")),
            'i' if rest.starts_with(KEYS) => (KEYS.len(), Some(KEYS_ON_POSTGRES)),
            'j' if rest.starts_with(EACH) => (EACH.len(), Some(EACH_ON_POSTGRES)),
            _ => (next.len_utf8(), None),
        };
        out.push_str(put.unwrap_or(&rest[..taken]));
        rest = &rest[taken..];
    }
    out
}

/// Translates a migration, which is ours alone: so types, collations and comments are replaced as text.
pub(crate) fn migration_to_postgres(sql: &str) -> String {
    sql.replace("/*pg", "")
        .replace("*/", "")
        .replace("integer primary key autoincrement", "bigint generated always as identity primary key")
        .replace(" integer", " bigint")
        .replace(" text not null", " text collate \"C\" not null")
        .replace(" text,", " text collate \"C\",")
        .replace(" text\n", " text collate \"C\"\n")
        .replace(" text primary key", " text collate \"C\" primary key")
        .replace(") strict;", ");")
}

/// The length of a literal or a quoted name at the start of the text. (A doubled quote ends it and begins the next.)
fn quoted(text: &str, quote: char) -> usize {
    text[1..].find(quote).map_or(text.len(), |end| end + 2)
}

/// The length of `$tag$ … $tag$` at the start of the text; 1 if it is only a dollar.
fn dollar_quoted(text: &str) -> usize {
    let Some(end) = text[1..].find('$') else { return 1 };
    let tag = &text[..end + 2];
    if !tag[1..=end].chars().all(|c| c.is_alphanumeric() || c == '_')
        || tag[1..].starts_with(|c: char| c.is_ascii_digit())
    {
        return 1;
    }
    text[tag.len()..].find(tag).map_or(text.len(), |close| close + 2 * tag.len())
}

#[cfg(test)]
mod tests {
    use super::{super::by_keys, *};

    #[test]
    fn each_difference_is_translated() {
        for (sql, expected) in [
            (
                "select 1 from t, json_each(?2) as item where id = ?1 limit 1 /*pg for update skip locked*/",
                "select 1 from t, fence_each($2) as item where id = $1 limit 1  for update skip locked",
            ),
            ("select 'why?' where a = ?1", "select 'why?' where a = $1"),
            ("select 'why ?1', 'it''s ?1', ?12", "select 'why ?1', 'it''s ?1', $12"),
            (
                "select /* a note, ?1 */ ?1 -- really ?1\n + ?2",
                "select /* a note, ?1 */ $1 -- really ?1\n + $2",
            ),
            ("select \"odd?1\" from json_each(?1)", "select \"odd?1\" from fence_each($1)"),
            ("do $$ begin perform '?1'; end $$; select ?1", "do $$ begin perform '?1'; end $$; select $1"),
            ("select $1, $2 ?1 $x$ ?1 $x$", "select $1, $2 $1 $x$ ?1 $x$"),
            (
                "/*pg (select*/ json_each(?1) /*pg order by 'a?1')*/",
                " (select fence_each($1)  order by 'a?1')",
            ),
            ("select data ? 'a' from t", "select data ? 'a' from t"),
            ("select 'never ends ?1", "select 'never ends ?1"),
        ] {
            assert_eq!(to_postgres(sql), expected);
        }
    }

    #[test]
    fn a_set_of_keys_is_looked_up() {
        let sql = by_keys!(write, &[1, 2][..], "delete from t where id", "and x = 1");
        let expected = "delete from t where id = any(array(select cast(value ->> 'k' as bigint) from fence_each($1))) and x = 1";
        assert_eq!(to_postgres(sql.sql), expected);
    }
}
