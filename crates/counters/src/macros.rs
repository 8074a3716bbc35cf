//! The two declarations.

/// Declares a struct of counters. The first words after its name are the name of its [`Group`](crate::Group) and who counts; each field has
/// its meaning as documentation, the type of its number and, after `=>`, its [`Unit`](crate::Unit).
///
/// ```
/// turnbuckle_counters::counters! {
///     /// What came in.
///     pub struct Arrivals: "arrivals", "the data path" {
///         /// Datagrams read.
///         pub datagrams: turnbuckle_counters::Counter => Datagrams,
///     }
/// }
/// ```
#[macro_export]
macro_rules! counters {
    ($(#[$attribute:meta])* $visibility:vis struct $name:ident: $group:literal, $counted_by:literal {
        $($(#[doc = $meaning:literal])+ $field_visibility:vis $field:ident: $type:ty => $unit:ident,)+
    }) => {
        $(#[$attribute])*
        #[derive(Debug, Default)]
        $visibility struct $name {
            $($(#[doc = $meaning])+ $field_visibility $field: $type,)+
        }

        impl $crate::Counted for $name {
            const GROUP: &'static $crate::Group = &$crate::Group {
                name: $group,
                counted_by: $counted_by,
                counters: &[$($crate::Description {
                    name: stringify!($field),
                    meaning: concat!($($meaning),+).trim_ascii(),
                    unit: $crate::Unit::$unit,
                    kind: <$type as $crate::Measure>::KIND,
                    labels: <$type as $crate::Measure>::LABELS,
                }),+],
            };

            fn visit(&self, show: &mut dyn FnMut($crate::Sample)) {
                let mut counters = <Self as $crate::Counted>::GROUP.counters.iter();
                $(if let Some(counter) = counters.next() {
                    $crate::Measure::visit(&self.$field, counter, show);
                })+
            }

            fn add_all(&self, other: &Self) {
                $($crate::Measure::add_all(&self.$field, &other.$field);)+
            }
        }
    };
}

/// Declares a closed list of reasons, each with its meaning as documentation and its label.
///
/// ```
/// turnbuckle_counters::reasons! {
///     /// Why a call ended.
///     pub enum End {
///         /// The other side hung up.
///         HungUp = "hung_up",
///     }
/// }
/// assert_eq!(End::ALL.map(End::as_str), ["hung_up"]);
/// ```
#[macro_export]
macro_rules! reasons {
    ($(#[$attribute:meta])* $visibility:vis enum $name:ident {
        $($(#[doc = $meaning:literal])+ $reason:ident = $label:literal,)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $visibility enum $name {
            $($(#[doc = $meaning])+ $reason,)+
        }

        impl $name {
            /// All of them, in the order of [`Self::index`].
            $visibility const ALL: [Self; [$($label),+].len()] = [$(Self::$reason),+];

            /// Returns the label: lower case with underscores, the same for ever.
            $visibility const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$reason => $label,)+
                }
            }

            /// Returns the position in [`Self::ALL`].
            $visibility const fn index(self) -> usize {
                self as usize
            }
        }

        impl $crate::Reason for $name {
            const COUNT: usize = Self::ALL.len();

            const LABELS: &'static [$crate::Label] = &[$($crate::Label {
                name: Self::$reason.as_str(),
                meaning: concat!($($meaning),+).trim_ascii(),
            }),+];

            #[inline]
            fn index(self) -> usize {
                Self::index(self)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use crate::{Counted as _, Counter, Kind, Level, PerReason, Unit};

    reasons! {
        /// Why something was dropped.
        enum Why {
            /// It was late,
            /// very late.
            Late = "late",
            /// It was wrong.
            Wrong = "wrong",
        }
    }

    counters! {
        /// Some numbers.
        struct Numbers: "numbers", "the test" {
            /// Datagrams read.
            read: Counter => Datagrams,
            /// Datagrams dropped, by reason.
            dropped: PerReason<Why, { Why::ALL.len() }> => Datagrams,
            /// Sockets that are open.
            open: Level => Sockets,
        }
    }

    #[test]
    fn a_walk_shows_every_number_with_the_name_and_the_meaning_of_its_declaration() {
        let numbers = Numbers::default();
        numbers.read.add(3);
        numbers.read.add(2);
        numbers.dropped.of(Why::Wrong).add(4);
        numbers.open.set(7);
        numbers.open.set(1);
        let mut shown = Vec::new();
        numbers.visit(&mut |sample| {
            let label = sample.label.map(|label| (label.name, label.meaning));
            shown.push((sample.counter.name, label, sample.value));
        });
        assert_eq!(
            shown,
            [
                ("read", None, 5),
                ("dropped", Some(("late", "It was late, very late.")), 0),
                ("dropped", Some(("wrong", "It was wrong.")), 4),
                ("open", None, 1),
            ]
        );
        let [read, dropped, open] = Numbers::GROUP.counters else {
            panic!("three counters");
        };
        assert_eq!(
            (read.meaning, read.unit),
            ("Datagrams read.", Unit::Datagrams)
        );
        assert_eq!((dropped.kind, open.kind), (Kind::Total, Kind::Level));
        assert_eq!(Numbers::GROUP.counted_by, "the test");
    }

    #[test]
    fn a_sum_has_the_numbers_of_its_parts() {
        let (sum, part) = (Numbers::default(), Numbers::default());
        part.read.add(1);
        part.dropped.of(Why::Late).add(2);
        part.open.set(3);
        sum.add_all(&part);
        sum.add_all(&part);
        assert_eq!((sum.read.get(), sum.open.get()), (2, 6));
        assert_eq!(
            sum.dropped.iter().map(Counter::get).collect::<Vec<_>>(),
            [4, 0]
        );
    }
}
