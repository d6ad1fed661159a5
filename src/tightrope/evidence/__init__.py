"""What a third party can check: certificates and their verification."""
