"""The example agent does what its page says, on its own script, without a worker or a server."""

from __future__ import annotations

import datetime

import pytest

from examples import shop
from examples.support import app, list_purchases, support


def test_the_tools_know_the_shop() -> None:
    assert [one["order_id"] for one in list_purchases("marta jensen")] == [
        "B-1001", "B-1004", "B-1008", "B-1011", "B-1014",
    ]  # fmt: skip
    assert app.by_name["support"] is support
    with pytest.raises(LookupError, match="B-9999"):
        shop.find("B-9999")


@pytest.mark.parametrize(
    ("number", "day"),
    [
        ("B-1001", datetime.date(2026, 2, 5)),  # handed over
        ("B-1006", datetime.date(2026, 3, 9)),  # left on a Tuesday, four working days by post to a far postcode
        ("B-1011", datetime.date(2026, 3, 9)),  # packed on Friday, no parcel moves at the weekend
        ("B-1014", datetime.date(2026, 3, 19)),  # the book is back on the 16th
    ],
)
def test_an_estimate_follows_from_the_records(number: str, day: datetime.date) -> None:
    assert shop.arrival(shop.find(number)) == day


def test_another_postcode_is_another_distance() -> None:
    assert shop.arrival(shop.find("B-1006"), "1050") == datetime.date(2026, 3, 5)


def test_every_order_is_of_a_book_and_a_carrier_that_exist() -> None:
    for order in shop.ORDERS.values():
        assert order.isbn in shop.BOOKS
        assert order.carrier in shop.CARRIERS
        assert shop.arrival(order) > order.ordered_on
