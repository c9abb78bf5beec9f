//! The numbered steps that bring a database to the shape this program knows, alike for both stores.

use crate::StoreError;

pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub sqlite: &'static str,
    pub postgres: &'static str,
}

pub const ALL: &[Migration] = &[
    Migration {
        version: 1,
        name: "spine",
        sqlite: include_str!("../migrations/sqlite/0001_spine.sql"),
        postgres: include_str!("../migrations/postgres/0001_spine.sql"),
    },
    Migration {
        version: 2,
        name: "placements",
        sqlite: include_str!("../migrations/sqlite/0002_placements.sql"),
        postgres: include_str!("../migrations/postgres/0002_placements.sql"),
    },
    Migration {
        version: 3,
        name: "tasks",
        sqlite: include_str!("../migrations/sqlite/0003_tasks.sql"),
        postgres: include_str!("../migrations/postgres/0003_tasks.sql"),
    },
];

/// What is left to do for a database at version `applied` (0 for an empty one).
pub fn after(applied: i64) -> Result<impl Iterator<Item = &'static Migration>, StoreError> {
    let newest = ALL.last().map_or(0, |migration| migration.version);
    if applied > newest {
        return Err(StoreError::Open(format!(
            "it has schema version {applied} and this program knows versions up to {newest}; use a newer hodei"
        )));
    }
    Ok(ALL.iter().filter(move |migration| migration.version > applied))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_from_one_without_gaps() {
        let versions: Vec<_> = ALL.iter().map(|migration| migration.version).collect();
        assert_eq!(versions, (1..=ALL.len() as i64).collect::<Vec<_>>());
    }

    #[test]
    fn a_newer_database_is_refused() {
        assert!(after(0).is_ok_and(|rest| rest.count() == ALL.len()));
        assert!(matches!(after(ALL.len() as i64 + 1), Err(StoreError::Open(_))));
    }
}
