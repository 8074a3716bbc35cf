//! The option table: the rows of all topics, in the order of coturn's documentation.

use std::sync::LazyLock;

use crate::config::Config;
use crate::draft::Draft;
use crate::entry::Entry;
use crate::persona::Persona;
use crate::problem::{Note, Origin};
use crate::removed;
use crate::row::{Row, Topic, Written};
use crate::topics::{
    addresses, admin, authentication, auxiliary, clients, console, database, datapath, exporter,
    guests, http, limits, log, nat_discovery, offload, peers, process, proxies, redirection,
    relays, requests, statsdb, stun, third_parties, tls,
};
use crate::value::Value;

/// The rows of one topic, and where the topic is found.
struct Section<T: Topic> {
    rows: &'static [Row<T>],
    given: fn(&mut Draft) -> &mut T,
    settings: fn(&Config) -> &T::Settings,
}

/// A section whatever its topic.
trait Rows: Sync {
    fn entries(&'static self) -> Vec<&'static Entry>;

    /// Takes a value over; the row at `index` has a setting.
    fn take(
        &self,
        index: usize,
        draft: &mut Draft,
        written: &mut Written<'_>,
    ) -> Result<(), String>;

    /// Reads the effective values back; none if the row has no setting.
    fn show(&self, index: usize, config: &Config) -> Option<Vec<String>>;
}

impl<T: Topic> Rows for Section<T> {
    fn entries(&'static self) -> Vec<&'static Entry> {
        self.rows.iter().map(|row| &row.entry).collect()
    }

    fn take(
        &self,
        index: usize,
        draft: &mut Draft,
        written: &mut Written<'_>,
    ) -> Result<(), String> {
        match &self.rows[index].setting {
            Some(setting) => (setting.take)((self.given)(draft), written),
            None => Ok(()),
        }
    }

    fn show(&self, index: usize, config: &Config) -> Option<Vec<String>> {
        let setting = self.rows[index].setting.as_ref()?;
        Some((setting.show)((self.settings)(config)))
    }
}

/// All sections. Where keys of our own are listed at the same row of coturn's, they are in this order.
static SECTIONS: [&dyn Rows; 26] = [
    &Section {
        rows: addresses::ROWS,
        given: |draft| &mut draft.addresses,
        settings: |config| &config.addresses,
    },
    &Section {
        rows: nat_discovery::ROWS,
        given: |draft| &mut draft.addresses.discovery,
        settings: |config| &config.addresses.discovery,
    },
    &Section {
        rows: auxiliary::ROWS,
        given: |draft| &mut draft.addresses.auxiliary,
        settings: |config| &config.addresses.auxiliary,
    },
    &Section {
        rows: datapath::ROWS,
        given: |draft| &mut draft.datapath,
        settings: |config| &config.datapath,
    },
    &Section {
        rows: offload::ROWS,
        given: |draft| &mut draft.offload,
        settings: |config| &config.datapath.offload,
    },
    &Section {
        rows: authentication::ROWS,
        given: |draft| &mut draft.authentication,
        settings: |config| &config.authentication,
    },
    &Section {
        rows: third_parties::ROWS,
        given: |draft| &mut draft.authentication.third_parties,
        settings: |config| &config.authentication.third_parties,
    },
    &Section {
        rows: guests::ROWS,
        given: |draft| &mut draft.authentication.guests,
        settings: |config| &config.authentication.guests,
    },
    &Section {
        rows: requests::ROWS,
        given: |draft| &mut draft.authentication.requests,
        settings: |config| &config.authentication.requests,
    },
    &Section {
        rows: tls::ROWS,
        given: |draft| &mut draft.tls,
        settings: |config| &config.tls,
    },
    &Section {
        rows: http::ROWS,
        given: |draft| &mut draft.protocols.http,
        settings: |config| &config.protocols.http,
    },
    &Section {
        rows: proxies::ROWS,
        given: |draft| &mut draft.protocols.proxies,
        settings: |config| &config.protocols.proxies,
    },
    &Section {
        rows: clients::ROWS,
        given: |draft| &mut draft.limits.clients,
        settings: |config| &config.limits.clients,
    },
    &Section {
        rows: relays::ROWS,
        given: |draft| &mut draft.relays,
        settings: |config| &config.relays,
    },
    &Section {
        rows: limits::ROWS,
        given: |draft| &mut draft.limits,
        settings: |config| &config.limits,
    },
    &Section {
        rows: peers::ROWS,
        given: |draft| &mut draft.relays.peers,
        settings: |config| &config.relays.peers,
    },
    &Section {
        rows: stun::ROWS,
        given: |draft| &mut draft.stun,
        settings: |config| &config.stun,
    },
    &Section {
        rows: redirection::ROWS,
        given: |draft| &mut draft.redirection,
        settings: |config| &config.redirection,
    },
    &Section {
        rows: database::ROWS,
        given: |draft| &mut draft.authentication.database,
        settings: |config| &config.authentication.database,
    },
    &Section {
        rows: process::ROWS,
        given: |draft| &mut draft.process.settings,
        settings: |config| &config.process,
    },
    &Section {
        rows: log::ROWS,
        given: |draft| &mut draft.log,
        settings: |config| &config.log,
    },
    &Section {
        rows: exporter::ROWS,
        given: |draft| &mut draft.process.settings.exporter,
        settings: |config| &config.process.exporter,
    },
    &Section {
        rows: exporter::ADDRESS_ROWS,
        given: |draft| &mut draft.process.metrics_address,
        settings: |config| &config.process.exporter,
    },
    &Section {
        rows: statsdb::ROWS,
        given: |draft| &mut draft.process.settings.statsdb,
        settings: |config| &config.process.statsdb,
    },
    &Section {
        rows: console::ROWS,
        given: |draft| &mut draft.process.settings.console,
        settings: |config| &config.process.console,
    },
    &Section {
        rows: admin::ROWS,
        given: |draft| &mut draft.process.settings,
        settings: |config| &config.process,
    },
];

/// A row, and where it stands.
struct Place {
    entry: &'static Entry,
    section: &'static dyn Rows,
    index: usize,
}

/// All rows, in the order of coturn's inventory.
static TABLE: LazyLock<Vec<Place>> = LazyLock::new(|| {
    let mut places = Vec::new();
    for section in SECTIONS {
        let entries = section.entries().into_iter().enumerate();
        places.extend(entries.map(|(index, entry)| Place {
            entry,
            section,
            index,
        }));
    }
    // Stable: rows of one place stay in the order of their sections.
    places.sort_by_key(|place| place.entry.coturn.place);
    places
});

/// Returns all keys, in the order in which they are listed.
pub fn entries() -> impl Iterator<Item = &'static Entry> {
    TABLE.iter().map(|place| place.entry)
}

/// Returns a draft in which every setting has its default.
pub(crate) fn draft(persona: Persona) -> Draft {
    let mut draft = Draft::default();
    let mut notes = Vec::new();
    for place in TABLE.iter().filter(|place| place.entry.is_working()) {
        let values = &place.entry.values;
        let own = place.entry.coturn.turnserver_default;
        let own = own.filter(|_| persona == Persona::Turnserver);
        let Some(default) = own.or_else(|| values.literal_default()) else {
            continue;
        };
        let taken = place.entry.kind.parse(default).and_then(|value| {
            let mut written = Written {
                key: place.entry.name,
                value: &value,
                origin: &Origin::CommandLine,
                notes: &mut notes,
            };
            place.section.take(place.index, &mut draft, &mut written)
        });
        debug_assert_eq!(taken, Ok(()), "{}", place.entry.name);
    }
    draft
}

/// Takes a value of a key over; an error says what is wrong with it, and does not repeat secrets.
pub(crate) fn take(
    entry: &Entry,
    value: &Value,
    origin: &Origin,
    draft: &mut Draft,
    notes: &mut Vec<Note>,
) -> Result<(), String> {
    let Some(place) = place(entry) else {
        return Ok(());
    };
    let mut written = Written {
        key: place.entry.name,
        value,
        origin,
        notes,
    };
    place.section.take(place.index, draft, &mut written)
}

/// Returns the effective values of a key; none if it has no setting.
pub(crate) fn show(entry: &Entry, config: &Config) -> Option<Vec<String>> {
    let place = place(entry)?;
    place.section.show(place.index, config)
}

fn place(entry: &Entry) -> Option<&'static Place> {
    TABLE.iter().find(|place| place.entry.name == entry.name)
}

/// Returns the entry that has this name or alias.
pub(crate) fn find(name: &str) -> Option<&'static Entry> {
    entries().find(|entry| entry.name == name || entry.aliases.contains(&name))
}

/// Returns the name of the only key that begins with the given text, or the text itself.
pub(crate) fn complete(beginning: &str) -> &str {
    if find(beginning).is_some() || removed(beginning).is_some() {
        return beginning;
    }
    let names = entries().flat_map(|entry| {
        [entry.name]
            .into_iter()
            .chain(entry.aliases.iter().copied())
    });
    let mut found = names.filter(|name| name.starts_with(beginning));
    match (found.next(), found.next()) {
        (Some(name), None) => name,
        _ => beginning,
    }
}

/// Returns the entry that has this letter.
pub(crate) fn by_letter(letter: char) -> Option<&'static Entry> {
    entries().find(|entry| entry.short == Some(letter))
}

/// Says what became of a key that old versions of coturn had.
pub(crate) fn removed(name: &str) -> Option<&'static str> {
    removed::KEYS
        .iter()
        .find(|(key, _)| *key == name)
        .map(|(_, explanation)| *explanation)
}

/// Lists keys of old versions with what became of them.
pub fn removed_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    removed::KEYS.iter().copied()
}

/// Says what somebody who wrote `key` may have meant.
#[must_use]
pub fn suggest(key: &str) -> String {
    let bare = key.trim_start_matches('-');
    if let Some(entry) = find(bare) {
        return format!("in a file keys stand without dashes: `{}`", entry.name);
    }
    let mut letters = bare.chars();
    if let (Some(letter), None) = (letters.next(), letters.next())
        && let Some(entry) = by_letter(letter)
    {
        return format!(
            "letters work on the command line only; the key is `{}`",
            entry.name
        );
    }
    let folded = bare.replace('_', "-").to_lowercase();
    let names = entries()
        .flat_map(|entry| std::iter::once(entry.name).chain(entry.aliases.iter().copied()));
    let scored = names.map(|name| {
        (
            strsim::damerau_levenshtein(&folded, &name.to_lowercase()),
            name,
        )
    });
    match scored.min() {
        Some((distance, name)) if distance <= 1 + name.len() / 5 => {
            format!("did you mean `{name}`?")
        }
        _ => "`turnbuckle options` lists the keys".to_owned(),
    }
}
