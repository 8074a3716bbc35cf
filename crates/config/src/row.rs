//! A row of the option table: the documentation of a key, and the setting that it sets.
//!
//! A topic's file holds the settings of the topic and their rows, and nothing else depends on both. The default of a setting is in its row alone:
//! before anything is read, the text of every default is read as if it had been written.

use crate::entry::{Coturn, Entry, Group, Holds, Need, Reload, Support, Values};
use crate::problem::{Note, Origin};
use crate::value::{Kind, Value};

/// The given values of a topic. Its `Default` is a blank that the defaults of the rows fill.
pub(crate) trait Topic: Default + 'static {
    /// The settings that result when all values are known.
    type Settings: 'static;
}

/// A value that is about to be taken over.
pub(crate) struct Written<'a> {
    pub(crate) key: &'static str,
    pub(crate) value: &'a Value,
    pub(crate) origin: &'a Origin,
    pub(crate) notes: &'a mut Vec<Note>,
}

impl Written<'_> {
    /// Returns the text, and where it was written, for what is looked up later.
    pub(crate) fn placed_text(&self) -> (String, Origin) {
        (self.value.text().to_owned(), self.origin.clone())
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(Note {
            is_error: false,
            origin: Some(self.origin.clone()),
            key: self.key.to_owned(),
            text: text.into(),
        });
    }
}

/// How a row reaches its setting.
pub(crate) struct Setting<T: Topic> {
    /// Takes a value over; an error says what is wrong with it, and does not repeat secrets.
    pub(crate) take: fn(&mut T, &mut Written<'_>) -> Result<(), String>,
    /// Reads the effective values back; several for repeatable keys, none where nothing is set.
    pub(crate) show: fn(&T::Settings) -> Vec<String>,
}

/// One row of the table.
pub(crate) struct Row<T: Topic> {
    pub(crate) entry: Entry,
    /// Present if the key works and is not for the command line alone.
    pub(crate) setting: Option<Setting<T>>,
}

impl<T: Topic> Row<T> {
    /// Begins row `row` of the coturn inventory.
    pub(crate) const fn new(
        row: &'static str,
        name: &'static str,
        group: Group,
        kind: Kind,
        doc: &'static str,
    ) -> Self {
        let entry = Entry {
            name,
            aliases: &[],
            short: None,
            group,
            kind,
            values: Values {
                default: "",
                example: "",
            },
            is_repeatable: false,
            is_secret: false,
            doc,
            coturn: Coturn {
                row,
                place: row,
                default: None,
                differs_as_serve_alone: false,
                turnserver_default: None,
                stricter: None,
                is_always_on: false,
            },
            holds: Holds {
                needs: None,
                reload: Reload::Restart,
            },
            support: Support::NotYet(""),
        };
        Self {
            entry,
            setting: None,
        }
    }

    /// Begins a row for a key that coturn does not have, listed after row `place` of its inventory.
    pub(crate) const fn own(
        place: &'static str,
        name: &'static str,
        group: Group,
        kind: Kind,
        doc: &'static str,
    ) -> Self {
        let mut row = Self::new(place, name, group, kind, doc);
        row.entry.coturn.row = "";
        row
    }

    pub(crate) const fn short(mut self, letter: char) -> Self {
        self.entry.short = Some(letter);
        self
    }

    pub(crate) const fn aliases(mut self, names: &'static [&'static str]) -> Self {
        self.entry.aliases = names;
        self
    }

    pub(crate) const fn default(mut self, value: &'static str) -> Self {
        self.entry.values.default = value;
        self
    }

    /// Gives a value for the sample file, where the default is none.
    pub(crate) const fn example(mut self, value: &'static str) -> Self {
        self.entry.values.example = value;
        self
    }

    pub(crate) const fn repeatable(mut self) -> Self {
        self.entry.is_repeatable = true;
        self
    }

    pub(crate) const fn secret(mut self) -> Self {
        self.entry.is_secret = true;
        self
    }

    pub(crate) const fn needs(mut self, need: Need) -> Self {
        self.entry.holds.needs = Some(need);
        self
    }

    /// Says that a new value holds at once when the configuration is read again.
    pub(crate) const fn live(mut self) -> Self {
        self.entry.holds.reload = Reload::Live;
        self
    }

    /// Says that a new value holds for allocations that begin after the configuration was read again.
    pub(crate) const fn new_sessions(mut self) -> Self {
        self.entry.holds.reload = Reload::NewSessions;
        self
    }

    pub(crate) const fn coturn_default(mut self, value: &'static str, why: &'static str) -> Self {
        self.entry.coturn.default = Some((value, why));
        self
    }

    /// Says that by the name of `turnserver` the default is coturn's, or a note says what else is done.
    pub(crate) const fn differs_as_serve_alone(mut self) -> Self {
        self.entry.coturn.differs_as_serve_alone = true;
        self
    }

    /// Gives the default by the name of `turnserver`.
    pub(crate) const fn turnserver_default(mut self, value: &'static str) -> Self {
        self.entry.coturn.differs_as_serve_alone = true;
        self.entry.coturn.turnserver_default = Some(value);
        self
    }

    /// Says that in coturn the flag is on whatever its value says.
    pub(crate) const fn always_on_in_coturn(mut self) -> Self {
        self.entry.coturn.is_always_on = true;
        self
    }

    pub(crate) const fn stricter(mut self, how: &'static str) -> Self {
        self.entry.coturn.stricter = Some(how);
        self
    }

    pub(crate) const fn works(mut self, setting: Setting<T>) -> Self {
        self.entry.support = Support::Works;
        self.setting = Some(setting);
        self
    }

    pub(crate) const fn only(
        mut self,
        values: &'static [&'static str],
        otherwise: &'static str,
    ) -> Self {
        self.entry.support = Support::Only { values, otherwise };
        self
    }

    pub(crate) const fn no_effect(mut self, why: &'static str) -> Self {
        self.entry.support = Support::NoEffect(why);
        self
    }

    pub(crate) const fn not_yet(mut self, what: &'static str) -> Self {
        self.entry.support = Support::NotYet(what);
        self
    }

    pub(crate) const fn refused(mut self, why: &'static str) -> Self {
        self.entry.support = Support::Refused(why);
        self
    }

    pub(crate) const fn command_line(mut self) -> Self {
        self.entry.support = Support::CommandLine;
        self
    }
}

/// How we are stricter about flags that are [always on in coturn](Row::always_on_in_coturn).
pub(crate) const VALUE_COUNTS: &str = "the value counts; coturn ignores it and always switches on";

/// Returns one value as text.
pub(crate) fn one(value: impl ToString) -> Vec<String> {
    vec![value.to_string()]
}

/// Returns each value as text.
pub(crate) fn each<V: ToString>(values: impl IntoIterator<Item = V>) -> Vec<String> {
    values.into_iter().map(|value| value.to_string()).collect()
}

/// The setting `$field`, which has the same name and type in the given values and in the result: read by `$read`, shown by `$show`.
macro_rules! field {
    ($field:ident, $read:expr, $show:expr) => {
        $crate::row::Setting {
            take: |given, written| {
                given.$field = $read(written.value)?;
                Ok(())
            },
            show: |settings| $show(&settings.$field),
        }
    };
}

/// A `bool` that the flag turns on.
macro_rules! flag {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| Ok::<_, String>(value.flag()),
            $crate::row::one
        )
    };
}

/// A `bool` that the flag turns off.
macro_rules! off {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| Ok::<_, String>(!value.flag()),
            |is_on: &bool| $crate::row::one(!is_on)
        )
    };
}

/// A number of any type.
macro_rules! number {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| value.number(),
            $crate::row::one
        )
    };
}

/// An upper bound, `Option<NonZeroU32>`; zero means that there is none.
macro_rules! bound {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| value.number().map(std::num::NonZeroU32::new),
            |bound: &Option<std::num::NonZeroU32>| {
                $crate::row::one(bound.map_or(0, std::num::NonZeroU32::get))
            }
        )
    };
}

/// A `Duration` in seconds.
macro_rules! seconds {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| value.number().map(std::time::Duration::from_secs),
            |time: &std::time::Duration| $crate::row::one(time.as_secs())
        )
    };
}

/// An `Option<PathBuf>`.
macro_rules! file_path {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| Ok::<_, String>(Some(value.text().into())),
            |path: &Option<std::path::PathBuf>| {
                $crate::row::each(path.iter().map(|path| path.display()))
            }
        )
    };
}

/// An `Option<Box<str>>`.
macro_rules! text {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| Ok::<_, String>(Some(value.text().into())),
            |text: &Option<Box<str>>| $crate::row::each(text)
        )
    };
}

/// One of the words of a [`Choice`](crate::choice::Choice).
macro_rules! choice {
    ($field:ident) => {
        $crate::row::field!(
            $field,
            |value: &$crate::value::Value| $crate::choice::chosen(value.text()),
            |chosen: &_| $crate::row::one($crate::choice::word(*chosen))
        )
    };
}

pub(crate) use {bound, choice, field, file_path, flag, number, off, seconds, text};
