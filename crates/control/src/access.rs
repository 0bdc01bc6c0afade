//! Looking ahead in the access stream: frequencies, next use, reuse distance.
