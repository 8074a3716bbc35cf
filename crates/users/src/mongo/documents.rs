//! What is in coturn's documents, whichever of several types a program has chosen for it.

use mongodb::bson::{Bson, Document, RawBsonRef, RawDocument, doc};

use crate::change::{Listed, Listing};
use crate::records::{RealmOption, TokenKeyRow};
use crate::secret::Secret;

/// The options of a realm.
const REALM_OPTIONS: [&str; 3] = ["max-bps", "total-quota", "user-quota"];

/// Returns a field as text: numbers in decimal digits, and nothing for what is missing or of another type.
pub(super) fn text(document: &RawDocument, field: &str) -> String {
    match document.get(field) {
        Ok(Some(value)) => value_text(value),
        _ => String::new(),
    }
}

fn value_text(value: RawBsonRef<'_>) -> String {
    match value {
        RawBsonRef::String(text) => text.to_owned(),
        RawBsonRef::Int32(number) => number.to_string(),
        RawBsonRef::Int64(number) => number.to_string(),
        // A whole number has no digits behind a point.
        RawBsonRef::Double(number) => number.to_string(),
        _ => String::new(),
    }
}

/// Returns a field as a secret.
pub(super) fn secret(document: &RawDocument, field: &str) -> Secret {
    Secret::new(text(document, field).into_bytes())
}

/// Returns the texts of an array.
pub(super) fn texts(document: &RawDocument, field: &str) -> Vec<String> {
    let Ok(array) = document.get_array(field) else {
        return Vec::new();
    };
    let texts = array.into_iter().filter_map(|value| match value {
        Ok(RawBsonRef::String(text)) => Some(text.to_owned()),
        _ => None,
    });
    texts.collect()
}

/// Returns the options of a document of `realm`.
pub(super) fn options(document: &RawDocument) -> Vec<RealmOption> {
    let Ok(options) = document.get_document("options") else {
        return Vec::new();
    };
    let known = REALM_OPTIONS.into_iter().filter_map(|option| {
        let value = text(options, option);
        (!value.is_empty()).then(|| RealmOption {
            realm: text(document, "realm"),
            option: option.to_owned(),
            value,
        })
    });
    known.collect()
}

/// Returns a document of `oauth_key`.
pub(super) fn token_key(document: &RawDocument) -> TokenKeyRow {
    TokenKeyRow {
        name: text(document, "kid"),
        key: secret(document, "ikm_key"),
        timestamp: text(document, "timestamp"),
        lifetime: text(document, "lifetime"),
        cipher: text(document, "as_rs_alg"),
        realm: text(document, "realm"),
    }
}

/// Returns the collection in which something to list stands, and its fields.
pub(super) fn place(listing: Listing) -> (&'static str, Document) {
    let (collection, field) = match listing {
        Listing::Users => ("turnusers_lt", "name"),
        Listing::Secrets => ("turn_secret", "value"),
        Listing::Origins => ("realm", "origin"),
        Listing::RealmOptions => ("realm", "options"),
        Listing::Admins => ("admin_user", "name"),
    };
    (collection, doc! { "_id": 0, "realm": 1, field: 1 })
}

/// Returns what is listed of a document.
pub(super) fn listed(listing: Listing, document: &RawDocument) -> Vec<Listed> {
    let realm = text(document, "realm");
    let row = |name: String, value: String| Listed {
        realm: realm.clone(),
        name,
        value,
    };
    let one = |field| vec![row(text(document, field), String::new())];
    match listing {
        Listing::Users | Listing::Admins => one("name"),
        Listing::Secrets => one("value"),
        Listing::Origins => {
            let origins = texts(document, "origin").into_iter();
            origins.map(|origin| row(origin, String::new())).collect()
        }
        Listing::RealmOptions => {
            let options = options(document).into_iter();
            options
                .map(|option| row(option.option, option.value))
                .collect()
        }
    }
}

/// Returns the update of a realm's document that sets options, and removes those that are 0. The number has the smallest type that holds it, as coturn
/// reads no other.
pub(super) fn options_update(options: &[(&str, u64)]) -> Document {
    let mut set = Document::new();
    let mut unset = Document::new();
    for &(option, value) in options {
        let field = format!("options.{option}");
        match (i32::try_from(value), i64::try_from(value)) {
            (Ok(0), _) => unset.insert(field, 1),
            (Ok(small), _) => set.insert(field, small),
            (_, Ok(large)) => set.insert(field, large),
            // Above what is signed there is no limit that differs.
            _ => set.insert(field, i64::MAX),
        };
    }
    let parts = [("$set", set), ("$unset", unset)];
    let parts = parts.into_iter().filter(|(_, fields)| !fields.is_empty());
    parts
        .map(|(operator, fields)| (operator.to_owned(), Bson::Document(fields)))
        .collect()
}

#[cfg(test)]
mod tests {
    use mongodb::bson::rawdoc;

    use super::*;

    #[test]
    fn numbers_are_read_in_every_type_that_programs_choose() {
        let document = rawdoc! { "realm": "r", "options": {
            "max-bps": 500_000.0, "total-quota": 7_i64, "user-quota": 3_i32, "other": 1,
        } };
        let options: Vec<_> = options(&document)
            .into_iter()
            .map(|option| format!("{}={}", option.option, option.value))
            .collect();
        assert_eq!(options, ["max-bps=500000", "total-quota=7", "user-quota=3"]);
    }

    #[test]
    fn what_is_missing_or_of_another_type_is_nothing() {
        let document = rawdoc! { "realm": true, "origin": "https://o:443", "list": ["a", 1, "b"] };
        assert_eq!(text(&document, "realm"), "");
        assert_eq!(text(&document, "name"), "");
        assert!(texts(&document, "origin").is_empty());
        assert_eq!(texts(&document, "list"), ["a", "b"]);
        assert!(options(&document).is_empty());
    }

    #[test]
    fn options_are_set_and_removed_in_one_update() {
        let update = options_update(&[("max-bps", 5), ("user-quota", 0), ("total-quota", 1 << 40)]);
        assert_eq!(
            update,
            doc! {
                "$set": { "options.max-bps": 5_i32, "options.total-quota": 1_i64 << 40 },
                "$unset": { "options.user-quota": 1 },
            }
        );
        assert_eq!(
            options_update(&[("max-bps", 0)]),
            doc! { "$unset": { "options.max-bps": 1 } }
        );
    }
}
