//! Passwords as coturn keeps them: hashed for administrators, encrypted for the MySQL connection.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::iv::FixedLength;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

/// Bytes of a key of AES-128.
const KEY_LEN: usize = 16;

/// Returns `$5$`, a fresh salt, and the SHA-256 of salt and password, in hexadecimal digits.
///
/// # Errors
///
/// The system yields no randomness.
pub fn hashed(password: &[u8]) -> Result<String, String> {
    let mut salt = [0; 8];
    fill_random(&mut salt)?;
    Ok(hashed_with(&salt, password))
}

/// Returns whether this is what [`hashed`] makes of a password.
#[must_use]
pub fn is_hashed(text: &[u8]) -> bool {
    parts(text).is_some()
}

/// Returns whether a password is the one that is `kept`, plain or hashed. The time that it takes tells nothing about either.
#[must_use]
pub fn is_password(kept: &[u8], given: &[u8]) -> bool {
    let digest = |salt: &[u8], text: &[u8]| Sha256::new().chain_update(salt).chain_update(text);
    let (kept, given) = match parts(kept) {
        Some((salt, hash)) => (hash, digest(&salt, given)),
        None => (digest(&[], kept).finalize().into(), digest(&[], given)),
    };
    verify_slices_are_equal(&kept, &given.finalize()).is_ok()
}

/// Returns the salt and the hash of a hashed password.
fn parts(text: &[u8]) -> Option<([u8; 8], [u8; 32])> {
    let mut parts = text.strip_prefix(b"$5$")?.split(|&byte| byte == b'$');
    let found = (bytes(parts.next()?)?, bytes(parts.next()?)?);
    parts.next().is_none().then_some(found)
}

/// Returns the bytes that two hexadecimal digits each stand for, if there are so many.
fn bytes<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|it| u8::try_from(it).ok())
    };
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn hashed_with(salt: &[u8; 8], password: &[u8]) -> String {
    let digest = Sha256::new().chain_update(salt).chain_update(password);
    format!(
        "$5${}${}",
        hexadecimal(salt),
        hexadecimal(&digest.finalize())
    )
}

/// Returns two digits for each byte.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Writes a new key, readable for its owner alone.
///
/// # Errors
///
/// The file cannot be written, or the system yields no randomness.
pub fn write_key(path: &Path) -> Result<(), String> {
    let mut bytes = [0; KEY_LEN];
    fill_random(&mut bytes)?;
    // Letters and digits, as coturn makes them, so that the file can be copied as text.
    let letters = bytes.map(|byte| LETTERS[usize::from(byte) % LETTERS.len()]);
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(&letters));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// 64, so that each byte of randomness gives one without preference.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encrypts with AES-128 in counter mode from zero. Returns base64.
///
/// # Errors
///
/// The file of the key cannot be read.
pub fn encrypted(key_file: &Path, text: &[u8]) -> Result<String, String> {
    let mut bytes = text.to_vec();
    let context = EncryptionContext::Iv128(FixedLength::from([0; 16]));
    cipher_key(key_file)?
        .and_then(EncryptingKey::ctr)
        .and_then(|key| key.less_safe_encrypt(&mut bytes, context))
        .map_err(|_| "the cipher is not available".to_owned())?;
    Ok(STANDARD.encode(bytes))
}

/// Returns the text that [`encrypted`] was given.
///
/// # Errors
///
/// The file of the key cannot be read, or the text is not base64.
pub fn decrypted(key_file: &Path, text: &[u8]) -> Result<Vec<u8>, String> {
    let mut bytes = STANDARD
        .decode(text)
        .map_err(|_| "what is to be verified is not base64".to_owned())?;
    let context = DecryptionContext::Iv128(FixedLength::from([0; 16]));
    cipher_key(key_file)?
        .and_then(DecryptingKey::ctr)
        .and_then(|key| key.decrypt(&mut bytes, context).map(|plain| plain.to_vec()))
        .map_err(|_| "the cipher is not available".to_owned())
}

type CipherKey = Result<UnboundCipherKey, aws_lc_rs::error::Unspecified>;

/// Returns the key in the first 16 bytes of the file.
fn cipher_key(path: &Path) -> Result<CipherKey, String> {
    let mut key = [0; KEY_LEN];
    std::fs::File::open(path)
        .and_then(|mut file| file.read_exact(&mut key))
        .map_err(|error| format!("{}: a key has 16 bytes: {error}", path.display()))?;
    Ok(UnboundCipherKey::new(&AES_128, &key))
}

fn fill_random(bytes: &mut [u8]) -> Result<(), String> {
    getrandom::fill(bytes).map_err(|error| format!("the system yields no randomness: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_known_by_its_text_or_by_its_hash_and_no_other_is() {
        let hashed = hashed(b"pw").unwrap();
        let debians =
            "$5$440931e215834133$b9db04540fd9aebe74bdc580f211a2a69a38b79f7da64a242e0a385e3e84dcdb";
        for kept in [&*hashed, debians, "pw"] {
            assert!(is_password(kept.as_bytes(), b"pw"), "{kept}");
            for other in ["", "p", "pw ", "PW", kept]
                .iter()
                .filter(|&&it| it != "pw")
            {
                assert!(!is_password(kept.as_bytes(), other.as_bytes()), "{kept}");
            }
        }
        assert!(is_hashed(hashed.as_bytes()));
        for no_hash in ["$5$", "$5$00$00", &hashed[..82], &format!("{hashed}$")] {
            assert!(!is_hashed(no_hash.as_bytes()), "{no_hash}");
        }
    }

    #[test]
    fn a_password_is_hashed_and_encrypted_as_debians_turnadmin_does_it() {
        let salt = [0x44, 0x09, 0x31, 0xe2, 0x15, 0x83, 0x41, 0x33];
        assert_eq!(
            hashed_with(&salt, b"pw"),
            "$5$440931e215834133$b9db04540fd9aebe74bdc580f211a2a69a38b79f7da64a242e0a385e3e84dcdb"
        );
        let folder = tempfile::tempdir().expect("a directory");
        let path = folder.path().join("key");
        std::fs::write(&path, "5aKaQJCd20g14uy6").expect("written");
        assert_eq!(encrypted(&path, b"hello").unwrap(), "DQlrV/0=");
        assert_eq!(decrypted(&path, b"DQlrV/0=").unwrap(), b"hello");
    }

    #[test]
    fn a_new_key_is_another_one_and_nobody_elses_to_read() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().expect("a directory");
        let [one, other] = ["one", "other"].map(|name| {
            let path = folder.path().join(name);
            write_key(&path).expect("written");
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            std::fs::read(&path).unwrap()
        });
        assert_eq!(one.len(), 16);
        assert_ne!(one, other);
    }
}
