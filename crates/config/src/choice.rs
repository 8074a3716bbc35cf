//! Choices: the enums of the engine, the data path and the log, with the words by which a configuration names their values.
//!
//! The enum belongs to the crate that acts on it; a topic adds the words alone.

/// A type with a word for each of its values.
pub(crate) trait Choice: Copy + PartialEq + 'static {
    /// Every value with its word, in the order in which they are listed.
    const WORDS: &'static [(&'static str, Self)];
}

/// Returns the words of `C` alone; `N` is how many there are.
pub(crate) const fn words<C: Choice, const N: usize>() -> [&'static str; N] {
    let mut words = [""; N];
    let mut index = 0;
    while index < N {
        words[index] = C::WORDS[index].0;
        index += 1;
    }
    words
}

/// The kind of value that names one of the choices of a type.
macro_rules! kind_of {
    ($choice:ty) => {{
        const COUNT: usize = <$choice as $crate::choice::Choice>::WORDS.len();
        const WORDS: [&str; COUNT] = $crate::choice::words::<$choice, COUNT>();
        $crate::value::Kind::Choice(&WORDS)
    }};
}

pub(crate) use kind_of;

/// Returns the value that `word` names.
pub(crate) fn chosen<C: Choice>(word: &str) -> Result<C, String> {
    let found = C::WORDS.iter().find(|(known, _)| *known == word);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| "is not one of the words".to_owned())
}

/// Returns the word for `value`.
pub(crate) fn word<C: Choice>(value: C) -> &'static str {
    let found = C::WORDS.iter().find(|(_, known)| *known == value);
    found.map_or("", |(word, _)| word)
}
