//! `admin/about`: the facts about the database. Opening with `create = false` creates nothing.

use fencepost::{Code, Durability, Fleet, admin};
use fencepost_testing::{
    World, on_both,
    postgres::{fresh_schema, fsync, url as postgres_url},
    world::{code, options},
};

/// The settings by which a power cut can undo acknowledged changes.
async fn weak(fleet: &Fleet) -> Vec<(String, String)> {
    let settings = fleet.call(admin::About {}).await.expect("an answer").database.durability;
    assert!(settings.len() >= 2, "{settings:?}");
    settings
        .into_iter()
        .filter(|setting| !setting.durable)
        .map(|setting| (setting.name, setting.value))
        .collect()
}

/// The server of the tests may have one such setting itself.
async fn weak_server(world: &World) -> Vec<(String, String)> {
    let is_weak = world.is_postgres() && !fsync().await;
    is_weak.then(|| ("fsync".into(), "off".into())).into_iter().collect()
}

on_both! {
    async fn about_reports_the_database(world: World) {
        let facts = world.fleet.call(admin::About {}).await.expect("an answer");
        let (kind, major) = if world.is_postgres() { ("PostgreSQL", 13) } else { ("SQLite", 3) };
        assert_eq!(facts.database.kind, kind);
        let version = facts.database.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        assert!(version.is_some_and(|version| version >= major), "{facts:?}");
        assert_eq!(facts.database.schema_version, facts.newest_schema_version);
        assert_eq!(weak(&world.fleet).await, weak_server(&world).await);
        assert_eq!((facts.now.to_string(), facts.floor), ("2026-01-01T12:00:00.000Z".into(), 0));
        world.pass(5);
        let later = world.fleet.call(admin::About {}).await.expect("an answer").now;
        assert_eq!(later.since(facts.now).0, 5000);
    }

    async fn the_id_of_a_fleet_is_random_and_stays(world: World) {
        let id = async |world: &World| world.fleet.call(admin::About {}).await.expect("an answer").fleet;
        let first = id(&world).await;
        assert!(first.len() == 16 && first.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')), "{first}");
        assert_eq!(id(&world.reopened().await).await, first);
        // A restored fleet issues higher fences under the same id.
        world.fleet.call(admin::Restored {}).await.expect("restored");
        assert_eq!(id(&world).await, first);
        let other = if world.is_postgres() { World::postgres().await } else { World::sqlite().await };
        assert_ne!(id(&other).await, first);
    }

    async fn about_reports_weak_durability(world: World) {
        let (url, setting) = match world.is_postgres() {
            true => (format!("{}&options=-c%20synchronous_commit%3Doff", world.url), ("synchronous_commit".into(), "off".into())),
            false => (world.url.clone(), ("synchronous".into(), "normal".into())),
        };
        let mut options = options(&world.clock);
        options.durability = Durability::Normal;
        let fleet = Fleet::open_with(&url, options).await.expect("it opens");
        let mut expected = weak_server(&world).await;
        expected.push(setting);
        assert_eq!(weak(&fleet).await, expected);
    }

    async fn opening_without_create_creates_nothing(world: World) {
        let mut look = options(&world.clock);
        look.create = false;
        Fleet::open_with(&world.url, look.clone()).await.expect("what is there opens");
        if world.is_postgres() {
            let url = postgres_url(&fresh_schema());
            for _ in 0..2 {
                assert_eq!(code(Fleet::open_with(&url, look.clone()).await), Code::NotFound);
            }
        } else {
            let url = format!("{}.not-there", world.url);
            assert_eq!(code(Fleet::open_with(&url, look).await), Code::NotFound);
            assert!(!std::path::Path::new(&url).exists());
        }
    }
}
